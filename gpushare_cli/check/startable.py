"""Ask whether a share of the usual size could start, on which nodes and in which namespaces that opted in.

Then name the sharing pods that do not start although nothing about their GPUs keeps them: of that ``explain`` tells.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpushare import contract
from gpushare.errors import GpuShareError
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.raw_objects import Object, mapping, moment, text
from gpushare_cli.check import workloads
from gpushare_cli.check.installation import installation
from gpushare_cli.check.result import CheckResult, failed, ok, warning
from gpushare_cli.check.trial import USUAL_MIB
from gpushare_cli.explain.pod_record import container_statuses, is_unseen
from gpushare_cli.placement.gpus import COUNTS
from gpushare_cli.placement.placing import Cause, Cluster, Hindrance, place
from gpushare_cli.words import clean, counted, some
from webhook.mutation.settings import DEFAULT_TOLERATIONS, Settings

SHARE: Final[Object] = {
    "spec": {"devices": {"requests": [{"name": "main", "exactly": {
        "deviceClassName": contract.DEVICE_CLASS,
        "capacity": {"requests": {contract.CAPACITY_MEMORY: f"{USUAL_MIB}Mi"}},
    }}]}},
}  # fmt: skip
"""A claim of the usual size."""


SMALLEST: Final[Object] = {"spec": {"devices": {"requests": [
    *SHARE["spec"]["devices"]["requests"],
    {"name": "amounts", "firstAvailable": [{"deviceClassName": each, "count": 1} for each in COUNTS]},
]}}}  # fmt: skip
"""The same, and it states the least that a ResourceQuota adds up: one that is used up has no room for that."""
LATE: Final = timedelta(minutes=5)
"""An image of some GiB takes less."""
UNSEEN: Final = timedelta(minutes=1)
IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
SIDECAR_IMAGE: Final = (
    "correct the chart's image.registry, image.repository or image.tag, or give the namespace the pull secret; pods "
    "that exist keep their image: create them again"
)
SCHEDULER: Final = "see whether kube-scheduler runs: kubectl get pods -n kube-system, and its leases"
_ADDED_UP: Final = frozenset(f"{each}{contract.DEVICE_QUOTA}" for each in COUNTS)


def on_nodes(api: KubeClient) -> CheckResult:
    """Look for nodes that would take a share, were nothing on their GPUs: not cordoned, tainted or unhealthy."""
    pod = {"spec": {"tolerations": _tolerations(installation(api).environment)}}
    nodes, labelled = workloads.nodes(api), workloads.labelled(api)
    slices = [each for each in workloads.slices(api) if text(mapping(each, "spec"), "nodeName") in labelled]
    found = place(pod, [SHARE], Cluster(nodes=nodes, slices=slices))
    here, why = found.nodes or (), found.hindrances
    if not here and any(each.cause is not Cause.OTHER_GPU for each in why):
        return warning(f"no share of {USUAL_MIB}Mi can start: {some(_messages(why))}", _hint(why))
    where = counted(len(here), "node") if here else "no node; MIG instances only"
    return ok(f"{where}; not {some(_messages(why))}" if here and why else where)


def in_namespaces(api: KubeClient) -> CheckResult:
    """Look for ResourceQuotas that leave no room for the claim of one more share, or that no claim can satisfy."""
    quotas = defaultdict[str, list[Object]](list)
    for each in api.list(path(CORE_V1, "resourcequotas"))[0]:
        quotas[text(mapping(each, "metadata"), "namespace")].append(each)
    there = {each["metadata"]["name"]: each for each in workloads.namespaces(api)}
    found = {
        name: [*_unstated(each, quotas[name]), *place({}, [SMALLEST], Cluster(quotas=quotas[name])).hindrances]
        for name, each in there.items()
    }
    full = {name: why for name, why in found.items() if why}
    if not full:
        return ok(f"in {counted(len(there), 'namespace')}")
    wrong = [clean(f"{name}: {why[0].message}") for name, why in full.items()]
    where = f"not in {len(full)} of {counted(len(there), 'namespace')}"
    return warning(f"{where}: {some(wrong)}", _hint([each for why in full.values() for each in why]))


def _unstated(namespace: Object, quotas: Sequence[Object]) -> Iterator[Hindrance]:
    """Yield the quotas that add up amounts, where claims do not state them: the API server refuses those claims."""
    if mapping(mapping(namespace, "metadata"), "annotations").get(contract.COUNT_AMOUNTS) == "true":
        return
    for quota in quotas:
        if not _ADDED_UP.isdisjoint(mapping(mapping(quota, "spec"), "hard")):
            name = text(mapping(quota, "metadata"), "name")
            message = f"ResourceQuota {name} adds up amounts that claims do not state"
            hint = f"an operator annotates the namespace: {contract.COUNT_AMOUNTS}=true"
            yield Hindrance(cause=Cause.QUOTA, message=message, hint=hint)


def _tolerations(environment: Mapping[str, str]) -> list[Object]:
    try:
        return list(Settings.from_environment(environment).tolerations)
    except GpuShareError:
        return list(DEFAULT_TOLERATIONS)


def stuck(api: KubeClient, now: datetime) -> CheckResult:
    """Look for sidecars without an image, pods that no scheduler has seen, and pods that wait long on their node."""
    pods = workloads.running_shares(api)
    pulls = [f"{_name(each)}: {why}" for each in pods if (why := _image(each))]
    if pulls:
        return failed(clean(f"the sidecar's image cannot be pulled for {some(pulls)}"), SIDECAR_IMAGE)
    if unseen := [_name(each) for each in pods if is_unseen(each) and _age(each, now) > UNSEEN]:
        return failed(f"no scheduler has looked at {some(unseen)}", SCHEDULER)
    waiting = [each for each in pods if text(mapping(each, "status"), "phase") == "Pending"]
    late = [_name(each) for each in waiting if mapping(each, "spec").get("nodeName") and _age(each, now) > LATE]
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


def _age(pod: Object, now: datetime) -> timedelta:
    created = moment(mapping(pod, "metadata").get("creationTimestamp"))
    return timedelta() if created is None else now - created


def _name(pod: Object) -> str:
    metadata = mapping(pod, "metadata")
    return clean(f"{text(metadata, 'namespace')}/{text(metadata, 'name')}")


def _messages(why: Sequence[Hindrance]) -> list[str]:
    return [clean(each.message) for each in why]


def _hint(why: Sequence[Hindrance]) -> str:
    return next(filter(None, (each.hint for each in why)), "")
