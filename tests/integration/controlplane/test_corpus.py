"""Real pod templates from public repositories through the real API server: nothing is lost, nothing unexpected added.

Each template is created twice: annotated in an opted-in namespace, and as it was in one that is not. What came back is
compared path by path, so that what the API server itself defaults or refuses is not taken for our doing.
"""

import copy
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jsonpatch
import pytest

from gpushare import contract, kube_client
from gpushare.errors import ClusterError, Problem
from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane.bed import PODS, TEMPLATES, Bed, template_name
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.paths import flatten, orders
from tests.support.need import missing
from tests.unit.webhook.mutation.adviser import follow

pytestmark = pytest.mark.controlplane
VARIABLE = "GPU_SHARE_CORPUS"
USUAL = Path(__file__).parents[4] / "shared" / "corpus" / "pods.jsonl"
MOST_REFUSED = 74
LEAST_REFUSED = 80
"""Of the templates as they are, with their whole GPUs."""
NO_POD = "cannot be handled as a Pod"
VARIABLES = (
    "CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|CUDA_MPS_PIPE_DIRECTORY"
    "|CUDA_MPS_LOG_DIRECTORY|CUDA_MPS_PINNED_DEVICE_MEM_LIMIT|CUDA_MPS_ACTIVE_THREAD_PERCENTAGE|GPU_SHARE_MEMORY_MIB"
)
ADDED = re.compile(
    r"metadata\.annotations\.gpu-share\.io/memory"
    r"|metadata\.annotations\.kubectl\.kubernetes\.io/default-container"
    r"|metadata\.labels\.gpu-share\.io/managed"
    r"|spec\.resourceClaims\[gpu-share\]\..+"
    r"|spec\.initContainers\[gpu-share\]\..+"
    r"|spec\.volumes\[gpu-share-no-token\]\..+"
    r'|spec\.tolerations\[\{"effect": "NoSchedule", "key": "nvidia\.com/gpu", "operator": "Exists"\}\]\..+'
    rf"|spec\.(containers|initContainers)\[[^]]+\]\.env\[({VARIABLES})\]\.(name|value)"
    r'|spec\.containers\[[^]]+\]\.resources\.claims\[\{"name": "gpu-share", "request": "[^"]+"\}\]\.(name|request)'
)
CHANGED = re.compile(rf"spec\.(containers|initContainers)\[[^]]+\]\.env\[({VARIABLES})\]\.value")
USUAL_RIGHTS = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
"""Which container runtimes give to all."""
BY_THE_SIDECAR = ("status.qosClass", "BestEffort", "Burstable")
MADE_ANEW = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "namespace", "generation")
FROM_A_LIVE_CLUSTER = ("uid", "resourceVersion", "creationTimestamp", "ownerReferences", "generateName")


def corpus() -> list[Object]:
    file = Path(os.environ.get(VARIABLE) or USUAL)
    if not file.is_file():
        missing(f"no pod templates to try: set {VARIABLE} to a file of JSON lines with a pod each")
    return [json.loads(line) for line in file.read_text().splitlines()]


def as_it_is(entry: Object) -> Object:
    """The template as a pod of its own name, without what a live cluster wrote into it."""
    pod: Object = copy.deepcopy(entry["pod"])
    for key in (*FROM_A_LIVE_CLUSTER, "namespace"):
        pod["metadata"].pop(key, None)
    pod["metadata"]["name"] = f"pod-{entry['id']}"
    pod.pop("status", None)
    return pod


def prepared(entry: Object) -> Object:
    """The template as a pod of its own name, without whole GPUs and without what a live cluster wrote into it."""
    pod = as_it_is(entry)
    for container in containers(pod):
        for part in ("limits", "requests"):
            amounts = (container.get("resources") or {}).get(part) or {}
            for name in [name for name in amounts if name.startswith("nvidia.com/")]:
                del amounts[name]
    return pod


def asking(pod: Object, memory_mib: int) -> Object:
    """The same with one annotation: memory for its default container."""
    pod = copy.deepcopy(pod)
    annotations = pod["metadata"].get("annotations") or {}
    pod["metadata"]["annotations"] = {**annotations, contract.MEMORY: f"{memory_mib}Mi"}
    return pod


def containers(pod: Object) -> Iterator[Object]:
    yield from pod["spec"].get("initContainers") or []
    yield from pod["spec"]["containers"]


def cannot_share(pod: Object) -> list[str]:
    """Why a pod goes around any limit, read off it by these tests alone."""
    spec = pod["spec"]
    found = [key for key in ("hostPID", "hostIPC", "hostNetwork", "nodeName") if spec.get(key)]
    rights = [each.get("securityContext") or {} for each in containers(pod)]
    found += ["privileged" for each in rights if each.get("privileged")]
    added = [each for one in rights for each in (one.get("capabilities") or {}).get("add") or ()]
    found += [each for each in added if each not in USUAL_RIGHTS]
    found += [each["name"] for one in containers(pod) for each in one.get("env") or () if is_strange(each["name"])]
    return found + [volume["hostPath"]["path"] for volume in spec.get("volumes") or [] if volume.get("hostPath")]


def is_strange(variable: str) -> bool:
    """Whether NVIDIA's toolkit may read a variable that a share does not replace."""
    return variable.startswith("NVIDIA_") and variable not in VARIABLES.split("|")


def prepare_namespace(bed: Bed, namespace: str, pods: list[Object]) -> None:
    """Accounts that the templates name: without them the API server refuses, whoever they are."""
    for name in {pod["spec"].get("serviceAccountName") or pod["spec"].get("serviceAccount") for pod in pods}:
        if name and name != "default":
            bed.cluster.create(path(CORE_V1, "serviceaccounts", namespace=namespace), {"metadata": {"name": name}})


@pytest.fixture(name="cluster", scope="module")
def _cluster(bed: Bed) -> Bed:
    """The control plane with what the templates name."""
    scheduling, node = "/apis/scheduling.k8s.io/v1", "/apis/node.k8s.io/v1"
    bed.cluster.create(path(scheduling, "priorityclasses"), {"metadata": {"name": "build-preemptible"}, "value": 5})
    bed.cluster.create(path(node, "runtimeclasses"), {"metadata": {"name": "ascend"}, "handler": "ascend"})
    return bed


def attempt(bed: Bed, namespace: str, pod: Object, **query: str) -> tuple[Object | None, str]:
    try:
        return bed.create(namespace, pod, "admin", **query), ""
    except ClusterError as error:
        return None, error.message.partition(": ")[2]


def differences(without: Object, with_us: Object) -> list[str]:
    """Unexpected differences between a pod created without us and with us."""
    for pod in (without, with_us):
        for key in MADE_ANEW:
            pod["metadata"].pop(key, None)
    before, after = flatten(without), flatten(with_us)
    lost = [f"lost {key}" for key in before.keys() - after.keys() if not _accounted_for(key, before[key], after)]
    added = [f"added {key}" for key in after.keys() - before.keys() if not ADDED.fullmatch(key)]
    both = before.keys() & after.keys()
    changed = [
        f"changed {key}: {before[key]!r} became {after[key]!r}"
        for key in both
        if before[key] != after[key] and not CHANGED.fullmatch(key) and (key, before[key], after[key]) != BY_THE_SIDECAR
    ]
    return sorted(lost + added + changed + _moved(without, with_us))


def _accounted_for(key: str, value: object, after: Object) -> bool:
    """An empty object that has something in it now; a variable of ours that was taken from elsewhere (valueFrom)."""
    filled = not value and any(each.startswith((f"{key}.", f"{key}[")) for each in after)
    return filled or CHANGED.fullmatch(re.sub(r"\.valueFrom\..*", ".value", key)) is not None


def _moved(without: Object, with_us: Object) -> list[str]:
    """Entries of lists that come in another order than before; ours, replaced last, are left aside."""
    before, after = orders(without), orders(with_us)
    ours = re.compile(VARIABLES)
    return [
        f"moved {key}: {before[key]} became {after[key]}"
        for key in before.keys() & after.keys()
        if [each for each in after[key] if each in before[key] and not ours.fullmatch(each)]
        != [each for each in before[key] if each in after[key] and not ours.fullmatch(each)]
    ]


@dataclass(slots=True)
class Tally:
    """What became of the templates. ``who`` names a template by its number, repository and file."""

    names: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    invalid: dict[str, str] = field(default_factory=dict)
    no_pods: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def refuse(self, who: str, pod: Object, why: str) -> None:
        self.refused[who] = why
        self.problems += [] if cannot_share(pod) else [f"{who} is refused without need: {why}"]

    def accept(self, who: str, baseline: Object, made: Object) -> None:
        self.names.add(template_name(made))
        found = [f"has {cannot_share(baseline)} and is not refused"] if cannot_share(baseline) else []
        self.problems += [f"{who}: {each}" for each in found + differences(baseline, made)]

    def invalidate(self, who: str, complaint: str, refusal: str) -> None:
        """What the API server finds wrong without us it still finds wrong, and says so in the same words."""
        self.invalid[who] = refusal
        if _first_complaint(complaint) not in _without_numbers(refusal):
            self.problems.append(f"{who}: without us {complaint!r}, with us {refusal!r}")

    def report(self) -> str:
        head = f"{len(self.names)} share, {len(self.refused)} refused, {len(self.invalid)} invalid without us as well"
        refused = [f"refused {who}: {why}" for who, why in self.refused.items()]
        return "\n".join([head, *refused, *(f"invalid {who}: {why}" for who, why in self.invalid.items())])


def try_one(bed: Bed, tally: Tally, who: str, pods: tuple[Object, Object], namespaces: tuple[str, str]) -> None:
    """Create a template ``pods``: as it is and asking for a share; in ``namespaces``: one without and one with us."""
    bare, wanting = pods
    baseline, complaint = attempt(bed, namespaces[0], bare, dryRun="All")
    made, refusal = attempt(bed, namespaces[1], wanting)
    if made is None and "gpu-share" in refusal:
        tally.refuse(who, bare, refusal)
        return
    if baseline is None or made is None:
        tally.invalidate(who, complaint, refusal)
        if NO_POD in refusal:
            tally.no_pods.add(who)
            return
        wanting["metadata"]["namespace"] = namespaces[1]
        allowed, patch = bed.review(wanting)
        baseline, made = wanting, jsonpatch.apply_patch(wanting, patch)
        tally.problems += [] if allowed else [f"{who}: invalid, and refused by us"]
    again = bed.review(made)
    tally.problems += [f"{who}: second pass {again}"] if again != (True, []) else []
    tally.accept(who, copy.deepcopy(baseline), copy.deepcopy(made))


@pytest.mark.timeout(300)
def test_nothing_is_lost_and_only_what_is_expected_is_added(cluster: Bed) -> None:
    bed, entries = cluster, corpus()
    pods = [prepared(entry) for entry in entries]
    plain, namespace = bed.namespace("corpus-plain", opted_in=False), bed.namespace("corpus")
    for each in (plain, namespace):
        prepare_namespace(bed, each, pods)
    tally = Tally()
    for number, (entry, pod) in enumerate(zip(entries, pods, strict=True)):
        who = f"{entry['id']} ({entry['repo']}/{entry['file']})"
        try_one(bed, tally, who, (pod, asking(pod, 600 + number)), (plain, namespace))
    print(f"\n{len(entries)} templates: {tally.report()}")
    assert not tally.problems, "\n".join(tally.problems)
    assert len(tally.refused) <= MOST_REFUSED
    assert len(tally.names) + len(tally.refused) + len(tally.no_pods) == len(entries)
    stored = {template_name(pod) for pod in bed.list(PODS, namespace)}
    assert len(stored) == len(tally.names) + len(tally.no_pods) - len(tally.invalid)
    bed.until(
        "all templates are there", lambda: stored == {t["metadata"]["name"] for t in bed.list(TEMPLATES, namespace)}
    )
    bed.empty(namespace)
    bed.until("no template is left over", lambda: bed.list(TEMPLATES, namespace) == [], seconds=60)


def with_requests(pod: Object) -> Object:
    """The template as webhooks see it: the API server copies what only limits ask for."""
    pod = copy.deepcopy(pod)
    for each in containers(pod):
        resources = each.get("resources") or {}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    return pod


def problems_of(message: str) -> list[Problem]:
    """Read the problems of a refusal off its text, as a person does."""
    first, *lines = message.partition("denied the request: ")[2].split("\n")
    found = [line.removeprefix("* ").partition(": ") for line in lines or [first]]
    return [Problem(field, advice) for field, _, advice in found]


@pytest.mark.timeout(300)
def test_whoever_follows_all_messages_of_a_refusal_needs_no_second_attempt(
    cluster: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The templates keep their whole GPUs. Those that the API server refuses without us are left out."""
    monkeypatch.setattr(kube_client, "MESSAGE_LIMIT", sys.maxsize)
    pods = {f"{entry['id']} ({entry['file']})": as_it_is(entry) for entry in corpus()}
    plain, namespace = cluster.namespace("as-it-is", opted_in=False), cluster.namespace("followed")
    for each in (plain, namespace):
        prepare_namespace(cluster, each, [*pods.values()])
    valid = {who: pod for who, pod in pods.items() if attempt(cluster, plain, pod, dryRun="All")[0]}
    refused, again = dict[str, str](), dict[str, str]()
    for who, pod in valid.items():
        wanting = asking(pod, 4096)
        made, first = attempt(cluster, namespace, wanting, dryRun="All")
        if made is None:
            refused[who] = first
            followed = follow(with_requests(wanting), problems_of(first))
            made, second = attempt(cluster, namespace, followed, dryRun="All")
            again |= {} if made else {who: f"{first}\n  then {second}"}
    print(f"\n{len(valid)} of {len(pods)} templates are valid without us, {len(refused)} refused, {len(again)} again")
    assert not again, "\n".join(f"{who}: {why}" for who, why in again.items())
    assert len(refused) > LEAST_REFUSED


def _first_complaint(message: str) -> str:
    return _without_numbers(message.partition(" is invalid: ")[2] or message).strip("[]")[:150]


def _without_numbers(message: str) -> str:
    """Positions in lists shift by the sidecar, and the name of the namespace differs."""
    return re.sub(r"\d+", "N", message.replace("corpus-plain", "corpus"))
