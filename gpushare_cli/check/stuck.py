"""Name the sharing pods that do not start although nothing about their GPUs keeps them: of that ``explain`` tells."""

from datetime import UTC, datetime, timedelta
from typing import Final

from gpushare import contract
from gpushare.kube_client import KubeClient
from gpushare.raw_objects import Object, mapping, text
from gpushare_cli.check.result import CheckResult, failed, ok, warning
from gpushare_cli.check.workloads import running_shares
from gpushare_cli.explain.pod_record import container_statuses, is_unseen
from gpushare_cli.words import clean, counted, some

LATE: Final = timedelta(minutes=5)
"""An image of some GiB takes less."""
UNSEEN: Final = timedelta(minutes=1)
IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
SIDECAR_IMAGE: Final = (
    "correct the chart's image.registry, image.repository or image.tag, or give the namespace the pull secret; pods "
    "that exist keep their image: create them again"
)
SCHEDULER: Final = "see whether kube-scheduler runs: kubectl get pods -n kube-system, and its leases"


def stuck(api: KubeClient, now: datetime) -> CheckResult:
    """Look for sidecars without an image, pods that no scheduler has seen, and pods that wait long on their node."""
    pods = running_shares(api)
    pulls = [f"{_name(each)}: {why}" for each in pods if (why := _image(each))]
    if pulls:
        return failed(clean(f"the sidecar's image cannot be pulled for {some(pulls)}"), SIDECAR_IMAGE)
    if unseen := [_name(each) for each in pods if is_unseen(each) and _age(each, now) > UNSEEN]:
        return failed(f"no scheduler has looked at {some(unseen)}", SCHEDULER)
    late = [_name(each) for each in pods if _waits_on_node(each) and _age(each, now) > LATE]
    if late:
        detail = f"{counted(len(late), 'pod')} of {len(pods)} on their nodes for more than 5 minutes: {some(late)}"
        return warning(detail, f"gpu-share explain {late[0]}")
    return ok(f"none of {len(pods)}")


def _image(pod: Object) -> str:
    waiting = [
        mapping(mapping(each, "state"), "waiting")
        for each in container_statuses(pod) if each.get("name") == contract.SIDECAR
    ]  # fmt: skip
    return next((text(each, "message") or text(each, "reason") for each in waiting if each.get("reason") in IMAGE), "")


def _waits_on_node(pod: Object) -> bool:
    return bool(mapping(pod, "spec").get("nodeName")) and mapping(pod, "status").get("phase") == "Pending"


def _age(pod: Object, now: datetime) -> timedelta:
    created = text(mapping(pod, "metadata"), "creationTimestamp")
    return now - datetime.fromisoformat(created).astimezone(UTC) if created else timedelta()


def _name(pod: Object) -> str:
    metadata = mapping(pod, "metadata")
    return clean(f"{text(metadata, 'namespace')}/{text(metadata, 'name')}")
