"""Ask whether a share of the usual size could start, on which nodes and in which namespaces that opted in.

Then name the sharing pods that do not start although nothing about their GPUs keeps them: of that ``explain`` tells.
And those that could not be created again, because they use more of their nodes than their namespace lists.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from shlex import quote
from typing import Final

from gpushare import contract, host_access
from gpushare.errors import PolicyDenied
from gpushare.kube_client import COORDINATION_V1, CORE_V1, KubeClient, find, path
from gpushare.namespace_policy import NamespacePolicy
from gpushare.raw_objects import Object, mapping, moment, objects, text
from gpushare_cli.check import workloads
from gpushare_cli.check.installation import installation
from gpushare_cli.check.result import CheckResult, failed, ok, warning
from gpushare_cli.check.trial import SET_BY_OTHERS, USUAL_MIB, known_release
from gpushare_cli.check.workloads import namespaces, running_shares
from gpushare_cli.explain.pod_record import NO_CLAIM, TEMPLATE, container_statuses, is_unseen, is_without_claim, remedy
from gpushare_cli.placement.gpus import COUNTS
from gpushare_cli.placement.placing import Cause, Cluster, Hindrance, place
from gpushare_cli.words import clean, counted, is_over_quota, scheduler_remedy, some
from gpushare_cli.words import moment as written

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
PUBLISHED: Final = "see the line GPUs published"
RUNS: Final = "see whether {} runs: kubectl get pods -n kube-system, and its leases"
PROGRAMS: Final = ("kube-scheduler", "kube-controller-manager")
DURATIONS: Final = 4
"""A Lease lasts 15 s by default, within which another replica takes over, and its holder renews it every 2 s."""
_ADDED_UP: Final = frozenset(f"{each}{contract.DEVICE_QUOTA}" for each in COUNTS)


def on_nodes(api: KubeClient) -> CheckResult:
    """Look for nodes that would take a share, were nothing on their GPUs: not cordoned, tainted or unhealthy."""
    pod = {"spec": {"tolerations": list(installation(api).settings.tolerations)}}
    nodes, labelled = workloads.nodes(api), workloads.labelled(api)
    slices = [each for each in workloads.slices(api) if text(mapping(each, "spec"), "nodeName") in labelled]
    found = place(pod, [SHARE], Cluster(nodes=nodes, slices=slices))
    here, why = found.nodes or (), found.hindrances
    if not here and any(each.cause is not Cause.OTHER_GPU for each in why):
        hint = PUBLISHED if why[0].cause is Cause.NO_GPU else _hint(why)
        return warning(f"no share of {USUAL_MIB}Mi can start: {some(_messages(why))}", hint)
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


def leases(api: KubeClient) -> CheckResult:
    """Look whether who places pods and who makes claims renew their Leases, which shows before a pod waits.

    By the API server's clock: that of a workstation may be minutes off. It is no more than a warning, because one that
    runs without leader election leaves an old Lease behind. A cluster without Leases says nothing.
    """
    where = {each: path(COORDINATION_V1, "leases", each, "kube-system") for each in PROGRAMS}
    specs = {name: mapping(find(api, each) or {}, "spec") for name, each in where.items()}
    renewed = {name: last for name, spec in specs.items() if (last := moment(spec.get("renewTime"))) is not None}
    if not renewed:
        return ok("none to read")
    now = api.clock()
    late = [name for name, last in renewed.items() if (now - last).total_seconds() > _lasts(specs[name])]
    if not late:
        return ok("renewed")
    named = " and ".join(f"{name} has not renewed its Lease since {written(renewed[name])}" for name in late)
    hint = f"{RUNS.format(late[0])}; one that runs without leader election leaves an old Lease behind: delete that"
    return warning(f"{named}; without it no new share starts", hint)


def _lasts(spec: Object) -> float:
    """Seconds after which a Lease is not renewed any more; a holder that ends well writes 1 s into it."""
    seconds = spec.get("leaseDurationSeconds")
    return max(UNSEEN.total_seconds(), DURATIONS * seconds if isinstance(seconds, int) else 0)


def stuck(api: KubeClient, now: datetime) -> CheckResult:
    """Look for sidecars without an image, pods that no scheduler saw or could place, and those that wait on a node."""
    pods = workloads.running_shares(api)
    pulls = [(each, f"{_name(each)}: {why}") for each in pods if (why := _image(each))]
    if pulls:
        detail = f"the sidecar's image cannot be pulled for {some([why for _, why in pulls])}"
        return failed(clean(detail), _pull(api, pulls[0][0]))
    if hindered := [(_name(each), why) for each in pods if (why := _unplaced(each))]:
        detail = f"the scheduler cannot place {some([f'{name}: {why}' for name, why in hindered])}"
        return failed(clean(detail), scheduler_remedy(hindered[0][1]))
    unseen = [each for each in pods if is_unseen(each) and _age(each, now) > UNSEEN]
    if unmade := [each for each in unseen if is_without_claim(each)]:
        return _without_claims(api, unmade)
    if unseen:
        return _not_seen(api, unseen)
    waiting = [each for each in pods if text(mapping(each, "status"), "phase") == "Pending"]
    late = [_name(each) for each in waiting if mapping(each, "spec").get("nodeName") and _age(each, now) > LATE]
    if late:
        detail = f"{counted(len(late), 'pod')} of {len(pods)} on their nodes for more than 5 minutes: {some(late)}"
        return warning(detail, f"gpu-share explain {late[0]}")
    return ok(f"none of {len(pods)}")


def _not_seen(api: KubeClient, pods: Sequence[Object]) -> CheckResult:
    """Say which scheduler has not looked at pods; what others than Kubernetes' own do is no fault of the release."""
    release = known_release(api)
    known = {"", *release.settings.scheduler_names}
    ours = [_name(each) for each in pods if _scheduler(each) in known or not release.environment]
    if ours:
        return failed(f"no scheduler has looked at {some(ours)}", RUNS.format(PROGRAMS[0]))
    names = some([f"{_name(each)} ({_scheduler(each)})" for each in pods])
    detail = f"only Kubernetes' own scheduler places shares, and these pods wait for another: {names}"
    return warning(clean(detail), f"remove schedulerName from the pods; if others set it, {SET_BY_OTHERS}")


def _without_claims(api: KubeClient, pods: Sequence[Object]) -> CheckResult:
    """Say why pods wait for their claims: an Event names the quota that is full; nobody tries where there is none."""
    events = api.list(path(CORE_V1, "events"), fieldSelector=f"reason={NO_CLAIM}")[0]
    messages = {mapping(each, "involvedObject").get("uid"): text(each, "message") for each in events}
    silent = [_name(each) for each in pods if not messages.get(each["metadata"]["uid"])]
    if silent:
        hint = f"{RUNS.format(PROGRAMS[1])}; its log names a right that it lacks"
        return failed(f"kube-controller-manager has made no claim for {some(silent)}", hint)
    why = [clean(f"{_name(each)}: {messages[each['metadata']['uid']]}") for each in pods]
    others = [each for each in why if not is_over_quota(each) and TEMPLATE not in each]
    hint = remedy(NO_CLAIM, next(iter(others or why)))
    return (failed if others else warning)(f"claims cannot be made for {some(why)}", hint)


def _pull(api: KubeClient, pod: Object) -> str:
    """Say what to do about a sidecar's image: the chart names a wrong one, or others changed the pod's."""
    release, sidecars = known_release(api), objects(mapping(pod, "spec"), "initContainers")
    named = next((text(each, "image") for each in sidecars if each.get("name") == contract.SIDECAR), "")
    if not release.environment or named == release.settings.image:
        return SIDECAR_IMAGE
    return f"the chart's image is {release.settings.image}; if others change it, {SET_BY_OTHERS}; else {SIDECAR_IMAGE}"


def _image(pod: Object) -> str:
    waiting = [
        mapping(mapping(each, "state"), "waiting")
        for each in container_statuses(pod) if each.get("name") == contract.SIDECAR
    ]  # fmt: skip
    return next((text(each, "message") or text(each, "reason") for each in waiting if each.get("reason") in IMAGE), "")


def _unplaced(pod: Object) -> str:
    """Return the scheduler's words where not the pod nor its GPUs keep it from placing a pod; empty elsewhere."""
    conditions = objects(mapping(pod, "status"), "conditions")
    messages = (text(each, "message") for each in conditions if each.get("type") == "PodScheduled")
    return next(filter(scheduler_remedy, messages), "")


def _scheduler(pod: Object) -> str:
    return text(mapping(pod, "spec"), "schedulerName")


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


Needs = Mapping[str, frozenset[str]]
"""By annotation, what has to be listed in it."""


def host_needs(api: KubeClient) -> CheckResult:
    """Name what would be refused if the pods that run now were created again, and the commands that allow it."""
    used: dict[str, dict[str, frozenset[str]]] = defaultdict(lambda: defaultdict(frozenset))
    for pod in running_shares(api):
        for key, value in needs_of(pod):
            space = used[text(mapping(pod, "metadata"), "namespace")]
            space[key] |= {value}
    if not used:
        return ok("sharing pods use no host paths, added capabilities or toolkit variables")
    spaces = [mapping(each, "metadata") for each in namespaces(api)]
    annotations = {text(each, "name"): mapping(each, "annotations") for each in spaces}
    missing = [
        command
        for name in sorted(annotations.keys() & used.keys())
        for command in _commands(name, annotations[name], used[name])
    ]
    if not missing:
        return ok("namespaces list all that sharing pods use")
    detail = f"{counted(len({each.split()[3] for each in missing}), 'namespace')} with sharing pods that could not be"
    return warning(f"{detail} created again; allow what they use, or change the pods", "; ".join(missing))


def needs_of(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield annotation and value of what a pod uses; what no annotation allows is left out."""
    spec = mapping(pod, "spec")
    for volume in objects(spec, "volumes"):
        used = host_access.normal(mapping(volume, "hostPath").get("path"))
        if used and not host_access.overlaps(used, (*host_access.OF_EVERY_NODE, *host_access.OUR_OWN, "/dev")):
            yield contract.HOST_PATHS, used
    for container in (each for section in host_access.SECTIONS for each in objects(spec, section)):
        added = mapping(mapping(container, "securityContext"), "capabilities").get("add")
        names = map(host_access.capability, map(str, added)) if isinstance(added, list) else ()
        usual = host_access.CAPABILITIES | host_access.USUAL_CAPABILITIES
        yield from ((contract.ADDED_CAPABILITIES, each) for each in names if each not in usual)
        for name in (text(each, "name") for each in objects(container, "env")):
            if name.startswith(host_access.STEERING) and name not in host_access.HARMLESS:
                yield contract.TOOLKIT_VARIABLES, name


def _commands(name: str, annotations: Mapping[str, object], used: Needs) -> Iterator[str]:
    """Yield a command for each annotation that lacks something; it keeps what is listed already."""
    policy = NamespacePolicy()
    with suppress(PolicyDenied):
        policy = NamespacePolicy.from_annotations({key: str(value) for key, value in annotations.items()})
    listed = {
        contract.HOST_PATHS: policy.host_paths,
        contract.ADDED_CAPABILITIES: policy.added_capabilities,
        contract.TOOLKIT_VARIABLES: policy.toolkit_variables,
    }
    for key, values in sorted(used.items()):
        covers = host_access.within if key == contract.HOST_PATHS else str.__eq__
        lacking = {each for each in values if not any(covers(each, one) for one in listed[key])}
        if lacking:
            wanted = quote(clean(",".join(sorted({*listed[key], *lacking}))))
            yield f"kubectl annotate namespace {name} --overwrite {key}={wanted}"
