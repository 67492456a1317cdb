"""What has to hold after every step; each rule compares one state with the state before the step. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from math import inf
from typing import Final

from tests.rehearsal import chain
from tests.rehearsal.amounts import mib
from tests.rehearsal.state import (
    JOB,
    MINIMUM,
    REPLICA,
    REPLICAS,
    STEADY,
    Allowed,
    Object,
    State,
    at,
    is_ready,
    kind,
    located,
    node_of,
    uid,
)

SIDECAR: Final = "gpu-share"
STUCK: Final = 120.0
NOTICE: Final = 30.0
"""Seconds before which a loss has to be announced."""
GRACE: Final = 5.0
LATE: Final = 10.0
"""Seconds beyond grace for which a container may be over its quota."""
KNOWN: Final = 1
"""The version of the driver's own files."""
PROTECTION: Final = "resource.kubernetes.io/delete-protection"
Rule = Callable[[State, State, Allowed], Iterator[str]]


def lost_tenants(before: State, now: State, allowed: Allowed) -> Iterator[str]:
    """A steady tenant is the same pod with the same containers.

    What a taint of its node announced ``NOTICE`` seconds before is not lost.
    """
    found = {uid(pod): pod for pod in now.pods}
    for old in before.pods:
        if kind(old) == STEADY and running(old):
            new = found.get(uid(old))
            if new is None or new["metadata"].get("deletionTimestamp"):
                if not told(old, now):
                    yield f"tenant {name(old)} was lost"
            elif not running(new):
                yield f"tenant {name(old)} does not run"
            elif restarts(new) - restarts(old) > allowed.restarts:
                yield f"tenant {name(old)} was restarted {restarts(new) - restarts(old)} times"
            elif sidecars(new) - sidecars(old) > allowed.sidecars:
                yield f"the sidecar of {name(old)} was restarted {sidecars(new) - sidecars(old)} times"


def jobs(_: State, now: State, __: Allowed) -> Iterator[str]:
    """A Job's pod with a share ends by itself, and with success."""
    for pod in now.pods:
        if kind(pod) == JOB and pod["spec"].get("resourceClaims"):
            if phase(pod) == "Failed":
                yield f"the Job's pod {name(pod)} failed"
            elif phase(pod) != "Succeeded":
                yield f"the Job's pod {name(pod)} has not ended"


def told(pod: Object, now: State) -> bool:
    """Whether a pod that is gone ran until it was ``NOTICE`` seconds after the announcement, or longer."""
    return now.alive.get(uid(pod), 0.0) >= now.announced.get(node_of(pod), inf) + NOTICE


def fewer(_: State, now: State, allowed: Allowed) -> Iterator[str]:
    """The Deployment had its minimum of ready pods all the time, and has all of them again."""
    if now.fewest is None:
        return
    if now.fewest < MINIMUM and not allowed.fewer:
        yield f"{now.fewest} pods of the Deployment were ready, and {MINIMUM} have to be"
    ready = sum(kind(pod) == REPLICA and is_ready(pod) for pod in now.pods)
    if ready < REPLICAS:
        yield f"{ready} of {REPLICAS} pods of the Deployment are ready"


def stuck_pods(_: State, now: State, __: Allowed) -> Iterator[str]:
    """No pod stays in any phase for longer than two minutes, other than running."""
    for pod in now.pods:
        deleted = pod["metadata"].get("deletionTimestamp")
        if deleted and now.time - seconds(deleted) > STUCK:
            yield f"pod {name(pod)} is being deleted for more than {STUCK:.0f} s"
        elif phase(pod) == "Pending" and now.time - seconds(pod["metadata"]["creationTimestamp"]) > STUCK:
            yield f"pod {name(pod)} is pending for more than {STUCK:.0f} s"


def overallocated(_: State, now: State, __: Allowed) -> Iterator[str]:
    """The claims on a device consume no more of it than its slice offers."""
    offered = {
        (each["spec"]["pool"]["name"], device["name"]): device.get("capacity") or {}
        for each in now.slices
        for device in each["spec"].get("devices") or ()
    }
    used: dict[tuple[str, str], int] = {}
    for result in (each for claim in now.claims for each in results(claim)):
        if amount := (result.get("consumedCapacity") or {}).get("memory"):
            key = result["pool"], result["device"]
            used[key] = used.get(key, 0) + mib(amount)
    for key, sum_mib in used.items():
        if key in offered and sum_mib > mib(offered[key]["memory"]["value"]):
            yield f"device {key[1]} is allocated {sum_mib} MiB, more than it has"


def over_quota(_: State, now: State, __: Allowed) -> Iterator[str]:
    """Nobody is over a quota for longer than grace and ten seconds."""
    names = {uid(pod): name(pod) for pod in now.pods}
    for pod, lasted in now.over.items():
        if lasted > GRACE + LATE:
            yield f"pod {names.get(pod, pod)} is over its quota for {lasted:.0f} s"


def audit(before: State, now: State, _: Allowed) -> Iterator[str]:
    """The chain holds, and has all records that were there before."""
    for node, lines in now.audit.items():
        found = (*chain.violations(lines), *chain.lost(before.audit.get(node, ()), lines))
        yield from (f"{node}: {each}" for each in found)


def orphans(_: State, now: State, __: Allowed) -> Iterator[str]:
    """Nothing is left of claims and pods that are gone."""
    claims, pods = allocated(now.claims), {located(each) for each in now.pods} | now.everybody
    living = {each.rpartition("/")[2] for each in pods}
    left = (
        ("CDI file of claim", now.cdi - claims),
        ("checkpoint of claim", now.kept.keys() - claims),
        ("status folder of pod", now.status - pods),
        ("mount of pod", now.mounts - pods),
        ("control group of pod", now.cgroups - pods),
    )
    yield from (f"{what} {each} is an orphan" for what, found in left for each in sorted(found))
    for claim in now.claims:
        owners = [each["uid"] for each in claim["metadata"].get("ownerReferences") or () if each["kind"] == "Pod"]
        if owners and not living & set(owners):
            yield f"claim {name(claim)} is an orphan"
    entries = (entry for pod in now.pods for entry in pod["spec"].get("resourceClaims") or ())
    used = {entry.get("resourceClaimTemplateName") for entry in entries}
    for template in now.templates:
        last = max(seconds(template["metadata"]["creationTimestamp"]), now.used.get(template["metadata"]["name"], 0.0))
        if template["metadata"]["name"] not in used and now.time - last > TEMPLATES:
            yield f"claim template {name(template)} is an orphan"


TEMPLATES: Final = 15 * 60.0
"""Seconds for which the webhook keeps a template that nobody uses, and some more."""


def finalizers(_: State, now: State, __: Allowed) -> Iterator[str]:
    """An allocated claim cannot be deleted under its pod."""
    for claim in now.claims:
        if results(claim) and PROTECTION not in (claim["metadata"].get("finalizers") or ()):
            yield f"claim {name(claim)} is allocated and has lost its finalizer"


def prepared(_: State, now: State, __: Allowed) -> Iterator[str]:
    """A pod that runs with a share has the files of its claim, of a version that this release knows."""
    owners = ((claim, owner) for claim in now.claims for owner in claim["metadata"].get("ownerReferences") or ())
    claims = {owner["uid"]: uid(claim) for claim, owner in owners}
    for pod in now.pods:
        claim = claims.get(uid(pod))
        if claim is not None and running(pod) and not pod["metadata"].get("deletionTimestamp"):
            if at(node_of(pod), claim) not in now.cdi:
                yield f"pod {name(pod)} runs without the CDI file of its claim"
            if at(node_of(pod), claim) not in now.kept:
                yield f"pod {name(pod)} runs without the checkpoint of its claim"
    for claim, version in now.kept.items():
        if version > KNOWN:
            yield f"the checkpoint of claim {claim} is of version {version}"


def daemons(before: State, now: State, allowed: Allowed) -> Iterator[str]:
    """Each GPU keeps its MPS daemon, or gets so many new ones as the step allows; ``now`` has all pids seen since."""
    for place, pids in now.daemons.items():
        fresh = len(set(pids) - set(before.daemons.get(place, pids)))
        if place in before.daemons and fresh > allowed.daemons:
            yield f"the MPS daemon in {place} was replaced {fresh} times"
    for place in before.daemons.keys() - now.daemons.keys():
        yield f"the MPS daemon in {place} is gone"


def admission(_: State, now: State, __: Allowed) -> Iterator[str]:
    """A sharing pod is admitted with a claim, and never without."""
    if now.admitted == "open":
        yield "a sharing pod was admitted without a claim: the webhook failed open"
    elif now.admitted != "share":
        yield "a sharing pod is refused"


def check(_: State, now: State, __: Allowed) -> Iterator[str]:
    """``gpu-share check`` is green, and was red while a part was away."""
    yield from (f"gpu-share check: {each}" for each in now.check or ())
    if now.red is False:
        yield "gpu-share check was green while a part was away"


RULES: Final[Sequence[Rule]] = (
    lost_tenants, jobs, fewer, stuck_pods, overallocated, over_quota, audit, orphans, finalizers, prepared, daemons,
    admission, check,
)  # fmt: skip


def violations(before: State, now: State, allowed: Allowed) -> list[str]:
    """Return what does not hold, by all rules."""
    return [each for rule in RULES for each in rule(before, now, allowed)]


def name(item: Object) -> str:
    """Return namespace and name."""
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def phase(pod: Object) -> str:
    """Return a pod's phase."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def running(pod: Object) -> bool:
    """Whether a pod runs and all of its containers do."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    return phase(pod) == "Running" and all("running" in each["state"] for each in states)


def restarts(pod: Object) -> int:
    """Count the restarts of a pod's containers, init containers included and its sidecar not."""
    return sum(each["restartCount"] for each in statuses(pod) if each["name"] != SIDECAR)


def sidecars(pod: Object) -> int:
    """Count the restarts of a pod's sidecar."""
    return sum(each["restartCount"] for each in statuses(pod) if each["name"] == SIDECAR)


def statuses(pod: Object) -> list[Object]:
    """Return the statuses of all containers."""
    found = pod.get("status") or {}
    return [*(found.get("initContainerStatuses") or ()), *(found.get("containerStatuses") or ())]


def allocated(claims: Iterable[Object]) -> set[str]:
    """Return the claims on the nodes whose GPUs they were allocated: a node is a pool of that name."""
    return {at(result["pool"], uid(claim)) for claim in claims for result in results(claim)}


def results(claim: Object) -> list[Object]:
    """Return what a claim was allocated."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def seconds(when: str) -> float:
    """Return an RFC 3339 time in seconds since 1970."""
    return datetime.fromisoformat(when).timestamp()
