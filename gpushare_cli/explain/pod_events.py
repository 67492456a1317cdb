"""The Events about a pod: what the enforcer did to it, and what Kubernetes says of its share."""

from collections.abc import Iterator
from typing import Final

from enforcer.status.messages import used_amounts
from gpushare import contract
from gpushare.raw_objects import Object, mapping, text
from gpushare.reasons import Reason
from gpushare_cli.explain.findings import Finding, FindingType
from gpushare_cli.explain.pod_record import PodRecord

SHOWN: Final = 5
"""So many Events are shown, the latest."""
KILLS: Final = f"reason={Reason.KILLED},reportingComponent={contract.ENFORCER_REPORTER}"
"""Selects the Events about containers that were killed."""
KILL: Final = "Kill"
"""The action of an Event about a kill."""
TROUBLE: Final = frozenset({"FailedPrepareDynamicResources", "FailedCreatePodSandBox"})
NO_CLAIM: Final = "FailedResourceClaimCreation"
"""Ordinary in the moment before the template is there."""


def of_enforcer(record: PodRecord) -> list[Object]:
    """Return the enforcer's Events about a pod, oldest first."""
    return [each for each in _about(record) if each.get("reportingComponent") == contract.ENFORCER_REPORTER]


def kills(record: PodRecord) -> list[Object]:
    """Return the Events about kills in a pod, oldest first."""
    return [each for each in of_enforcer(record) if each.get("action") == KILL]


def peaks(record: PodRecord) -> dict[str, tuple[int, int]]:
    """Return what the enforcer's Events say that each container used at most, and its quota then, in MiB."""
    found: dict[str, tuple[int, int]] = {}
    for event in of_enforcer(record):
        if amounts := used_amounts(text(event, "message")):
            container, used, quota = amounts
            found[container] = max((used, quota), found.get(container, (0, 0)))
    return found


def container_of(event: Object) -> str:
    """Name the container that an Event of the enforcer is about; empty where it is about none."""
    field = text(mapping(event, "involvedObject"), "fieldPath")
    return field.removeprefix("spec.containers{").removesuffix("}") if field.startswith("spec.containers{") else ""


def latest(record: PodRecord) -> Iterator[Finding]:
    """Yield the enforcer's latest Events about a pod, but for the last kill."""
    last = kills(record)[-1:]
    yield from (finding_of(each, FindingType.EVENT) for each in of_enforcer(record)[-SHOWN:] if each not in last)


def troubles(record: PodRecord) -> Iterator[Finding]:
    """Yield what Kubernetes says of the share of a pod that has not started; of each Reason the latest."""
    if record.status.get("phase") == "Pending":
        # What still holds, and stands nowhere in the pod. A pod lacks claims also in the moment before they are made.
        wanted = TROUBLE | {NO_CLAIM} if record.lacks_claims else TROUBLE
        found = {reason: each for each in _about(record) if (reason := text(each, "reason")) in wanted}
        yield from (finding_of(each, FindingType.OBSTACLE) for each in found.values())


def finding_of(event: Object, kind: FindingType) -> Finding:
    """Return an Event as a finding."""
    return Finding(
        type=kind, message=text(event, "message"), reason=text(event, "reason"), time=time_of(event),
        container=container_of(event),
    )  # fmt: skip


def time_of(event: Object) -> str:
    """Return when an Event happened last; empty where it does not say."""
    return text(event, "eventTime") or text(event, "lastTimestamp")


def _about(record: PodRecord) -> list[Object]:
    """The Events about this very pod, and not one of its name before it; oldest first."""
    uid = record.metadata.get("uid")
    mine = (each for each in record.events or () if mapping(each, "involvedObject").get("uid") == uid)
    return sorted(mine, key=time_of)
