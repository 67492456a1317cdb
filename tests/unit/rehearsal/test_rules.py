"""Defects that are planted into a state, one at a time: the checker names each, and nothing in a state without."""

import hashlib
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit.record import GENESIS, Kind, append_hash
from tests.golden.state_files import FOLDER
from tests.rehearsal import chain
from tests.rehearsal.rules import PROTECTION, SIDECAR, violations
from tests.rehearsal.state import JOB, LABEL, PLAIN, REPLICA, REPLICAS, STEADY, Allowed, Object, State

CHECKER = (
    "state.py", "chain.py", "rules.py", "amounts.py", "api.py", "processes.py", "sampling.py", "looking.py",
)  # fmt: skip
NOW = 1_800_000_000.0
EARLIER = "2026-01-01T00:00:00Z"
JUST_NOW = "2027-01-15T07:59:50Z"
GPU_MIB = 16384


def pod(number: int, kind: str = STEADY, phase: str = "Running") -> Object:
    status = {"name": "main", "restartCount": 0, "state": {"running": {}}}
    return {
        "metadata": {
            "name": f"pod-{number}", "namespace": "team", "uid": f"pod-uid-{number}", "labels": {LABEL: kind},
            "creationTimestamp": EARLIER,
        },
        "spec": {
            "nodeName": "node", "resourceClaims": [{"name": "gpu-share", "resourceClaimTemplateName": "template-1"}],
        },
        "status": {"phase": phase, "containerStatuses": [status] if phase == "Running" else []},
    }  # fmt: skip


def leaving(number: int, since: str) -> Object:
    found = pod(number, PLAIN)
    found["metadata"]["deletionTimestamp"] = since
    return found


def deployment(*readiness: str) -> tuple[Object, ...]:
    """Its pods, each with what its condition Ready says."""
    found = [pod(number, REPLICA) for number in range(11, 11 + len(readiness))]
    for each, status in zip(found, readiness, strict=True):
        each["spec"] = {"nodeName": "node"}
        each["status"]["conditions"] = [{"type": "Ready", "status": status}]
    return tuple(found)


def claim(number: int, memory: str = "8Gi") -> Object:
    result = {"driver": "gpu-share.io", "pool": "node", "device": "gpu-0", "consumedCapacity": {"memory": memory}}
    return {
        "metadata": {
            "name": f"claim-{number}", "namespace": "team", "uid": f"claim-uid-{number}", "finalizers": [PROTECTION],
            "ownerReferences": [{"kind": "Pod", "uid": f"pod-uid-{number}"}],
        },
        "status": {"allocation": {"devices": {"results": [result]}}},
    }  # fmt: skip


def log(*usages: int) -> tuple[bytes, ...]:
    lines, head = [], GENESIS
    for each in usages:
        line, head = append_hash(head, Kind.WARNED, EARLIER, {"usedMib": each})
        lines.append(line)
    return tuple(lines)


DEVICE = {"name": "gpu-0", "capacity": {"memory": {"value": f"{GPU_MIB}Mi"}}}
TEMPLATE = {"metadata": {"name": "template-1", "namespace": "team", "uid": "t-1", "creationTimestamp": EARLIER}}
SOUND = State(
    time=NOW, pods=(pod(1), pod(2), pod(3, JOB, "Succeeded")), claims=(claim(1), claim(2)), templates=(TEMPLATE,),
    slices=({"spec": {"pool": {"name": "node"}, "devices": [DEVICE]}},),
    cdi=frozenset({"node/claim-uid-1", "node/claim-uid-2"}), kept={"node/claim-uid-1": 1, "node/claim-uid-2": 1},
    status=frozenset({"node/pod-uid-1"}), mounts=frozenset({"node/pod-uid-1"}), cgroups=frozenset({"node/pod-uid-1"}),
    daemons={"node/gpu-0": (100,)}, alive={"pod-uid-1": NOW}, over={"pod-uid-1": 3.0}, audit={"node": log(1, 2, 3)},
    check=(),
)  # fmt: skip
Change = Callable[[State], State]


def with_pod(**changes: Any) -> Change:
    """Change pod 1: ``status`` and ``metadata`` are merged."""

    def change(state: State) -> State:
        pods = deepcopy(state.pods)
        for key, value in changes.items():
            pods[0][key] |= value
        return replace(state, pods=pods)

    return change


def with_claim(change: Callable[[Object], object]) -> Change:
    def changed(state: State) -> State:
        claims = deepcopy(state.claims)
        change(claims[0])
        return replace(state, claims=claims)

    return changed


def set_to(**values: Any) -> Change:
    return lambda state: replace(state, **values)


LOG = log(1, 2, 3)
EDITED = LOG[1].replace(b'"usedMib":2', b'"usedMib":9')


def logged(*lines: bytes) -> Change:
    return set_to(audit={"node": lines})


def rehashed() -> bytes:
    """An edited record with a hash that fits: the one after it shows it."""
    body = EDITED.rpartition(chain.MARK)[0]
    return body + chain.MARK + hashlib.sha256(body + b"}").hexdigest().encode() + chain.END


def with_deployment(*readiness: str, fewest: int) -> Change:
    return lambda state: replace(state, pods=(*state.pods, *deployment(*readiness)), fewest=fewest)


def moved(state: State) -> State:
    """Pod 1 runs on another node than the one whose files it needs."""
    pods = deepcopy(state.pods)
    pods[0]["spec"]["nodeName"] = "other"
    where = frozenset({"other/pod-uid-1"})
    return replace(state, pods=pods, status=where, mounts=where, cgroups=where)


RESTARTED = {"containerStatuses": [{"name": "main", "restartCount": 1, "state": {"running": {}}}]}
SIDECAR_RESTARTED = {"initContainerStatuses": [{"name": SIDECAR, "restartCount": 1, "state": {"running": {}}}]}
WARMED_AGAIN = {"initContainerStatuses": [{"name": "warm-up", "restartCount": 1, "state": {"terminated": {}}}]}
CRASHED = {"containerStatuses": [{"name": "main", "restartCount": 0, "state": {"terminated": {}}}]}
DEFECTS: dict[str, tuple[Change, str]] = {
    "a tenant is gone": (lambda state: replace(state, pods=state.pods[1:], **without_first()), "pod-1 was lost"),
    "a tenant was evicted": (with_pod(status={"phase": "Failed"}), "pod-1 does not run"),
    "a tenant's container ended": (with_pod(status=CRASHED), "pod-1 does not run"),
    "a tenant ends after a short notice": (
        lambda state: replace(state, pods=state.pods[1:], announced={"node": NOW - 29.0}, **without_first()),
        "pod-1 was lost",
    ),
    "a tenant ends after a notice of another node": (
        lambda state: replace(state, pods=state.pods[1:], announced={"other": NOW - 90.0}, **without_first()),
        "pod-1 was lost",
    ),
    "the Deployment fell below its minimum": (
        with_deployment("True", "True", "True", fewest=1),
        "1 pods of the Deployment were ready, and 2 have to be",
    ),
    "the Deployment lacks a pod": (with_deployment("True", "True", fewest=2), "2 of 3 pods of the Deployment"),
    "a pod of the Deployment is not ready": (with_deployment("True", "False", "True", fewest=2), "2 of 3 pods"),
    "a pod runs where its claim is not": (moved, "pod-1 runs without the CDI file"),
    "a tenant crashes after an announcement": (
        lambda state: with_pod(status=CRASHED)(replace(state, announced={"node": NOW - 90.0})),
        "pod-1 does not run",
    ),
    "a tenant was restarted": (with_pod(status=RESTARTED), "restarted 1 times"),
    "a tenant's sidecar was restarted": (with_pod(status=SIDECAR_RESTARTED), "the sidecar of team/pod-1"),
    "a tenant's init container ran again": (with_pod(status=WARMED_AGAIN), "restarted 1 times"),
    "a Job failed": (lambda state: replace(state, pods=(*state.pods[:2], pod(3, JOB, "Failed"))), "pod-3 failed"),
    "a Job does not end": (
        lambda state: replace(state, pods=(*state.pods[:2], pod(3, JOB))),
        "pod-3 has not ended",
    ),
    "a pod cannot end": (lambda state: replace(state, pods=(*state.pods, leaving(4, EARLIER))), "is being deleted"),
    "a tenant is evicted": (with_pod(metadata={"deletionTimestamp": JUST_NOW}), "pod-1 was lost"),
    "a pod waits for ever": (lambda state: replace(state, pods=(*state.pods, pod(4, "", "Pending"))), "is pending"),
    "a GPU is allocated twice": (lambda state: replace(state, claims=(claim(1), claim(2, "9Gi"))), "more than it has"),
    "a container is over its quota": (set_to(over={"pod-uid-2": 15.5}), "pod-2 is over its quota for 16 s"),
    "a record was edited": (logged(LOG[0], EDITED, LOG[2]), "node: audit log: record 2 was changed"),
    "a record was edited with its hash": (logged(LOG[0], rehashed(), LOG[2]), "record 3 does not follow record 2"),
    "the end of the log is lost": (logged(*LOG[:2]), "record 3 is lost"),
    "a record in between is lost": (logged(LOG[0], LOG[2]), "does not follow record 1"),
    "the log began again": (logged(), "record 1 is lost"),
    "a stale CDI file": (set_to(cdi=SOUND.cdi | {"node/gone"}), "CDI file of claim node/gone"),
    "a CDI file on another node": (set_to(cdi=SOUND.cdi | {"other/claim-uid-1"}), "CDI file of claim other/claim"),
    "a stale checkpoint": (set_to(kept={**SOUND.kept, "node/gone": 1}), "checkpoint of claim node/gone"),
    "a checkpoint of tomorrow": (set_to(kept={**SOUND.kept, "node/claim-uid-1": 2}), "is of version 2"),
    "a checkpoint is lost": (set_to(kept={"node/claim-uid-2": 1}), "pod-1 runs without the checkpoint"),
    "a CDI file is lost": (set_to(cdi=frozenset({"node/claim-uid-2"})), "pod-1 runs without the CDI file"),
    "a stale status folder": (set_to(status=frozenset({"node/gone"})), "status folder of pod node/gone"),
    "a stale mount": (set_to(mounts=frozenset({"node/gone"})), "mount of pod node/gone"),
    "a stale control group": (set_to(cgroups=frozenset({"node/gone"})), "control group of pod node/gone"),
    "a claim without its pod": (
        lambda state: replace(state, claims=(*state.claims, claim(9, "0Gi"))),
        "claim-9 is an orphan",
    ),
    "a template that nobody uses": (
        set_to(templates=(TEMPLATE, {"metadata": {**TEMPLATE["metadata"], "name": "t-2"}})),
        "t-2 is an orphan",
    ),
    "a lost finalizer": (with_claim(lambda found: found["metadata"].pop("finalizers")), "has lost its finalizer"),
    "a daemon was restarted": (set_to(daemons={"node/gpu-0": (100, 101)}), "replaced 1 times"),
    "a daemon is gone": (set_to(daemons={}), "gpu-0 is gone"),
    "the webhook fails open": (set_to(admitted="open"), "failed open"),
    "the webhook refuses everybody": (set_to(admitted="refused"), "is refused"),
    "the check is red": (set_to(check=("webhook replicas: 1 of 2 ready",)), "check: webhook replicas: 1 of 2"),
    "the check sees nothing": (set_to(red=False), "was green while a part was away"),
}


def without_first() -> dict[str, Any]:
    """What goes with pod 1, so that its absence alone is left to see."""
    return {
        "claims": SOUND.claims[1:], "cdi": frozenset({"node/claim-uid-2"}), "kept": {"node/claim-uid-2": 1}, "over": {},
        "status": frozenset(), "mounts": frozenset(), "cgroups": frozenset(),
    }  # fmt: skip


def test_in_a_sound_state_nothing_is_found() -> None:
    assert violations(SOUND, SOUND, Allowed()) == []


@pytest.mark.parametrize("name", DEFECTS)
def test_each_planted_defect_is_found_and_no_other(name: str) -> None:
    plant, words = DEFECTS[name]
    found = violations(SOUND, plant(deepcopy(SOUND)), Allowed())
    assert len(found) >= 1
    assert words in found[0]


def test_a_daemon_restarted_twice_is_found_where_one_restart_is_allowed() -> None:
    once, twice = (replace(SOUND, daemons={"node/gpu-0": pids}) for pids in ((100, 101), (100, 101, 102)))
    assert violations(SOUND, once, Allowed(daemons=1)) == []
    assert violations(SOUND, twice, Allowed(daemons=1)) == ["the MPS daemon in node/gpu-0 was replaced 2 times"]


def test_a_deployment_below_its_minimum_is_no_violation_where_the_step_allows_it() -> None:
    whole = with_deployment("True", "True", "True", fewest=0)(SOUND)
    assert len(deployment("True", "True", "True")) == REPLICAS
    assert violations(SOUND, whole, Allowed(fewer=True)) == []
    assert violations(SOUND, replace(whole, pods=whole.pods[:-1]), Allowed(fewer=True)) != []


def test_a_loss_that_was_announced_in_time_is_no_violation() -> None:
    gone = replace(SOUND, pods=SOUND.pods[1:], announced={"node": NOW - 31.0}, **without_first())
    assert violations(SOUND, gone, Allowed()) == []
    assert violations(SOUND, replace(gone, alive={}), Allowed()) == ["tenant team/pod-1 was lost"]


def test_a_template_whose_last_pod_went_just_now_is_no_orphan() -> None:
    other = {"metadata": {**TEMPLATE["metadata"], "name": "t-2"}}
    found = replace(SOUND, templates=(TEMPLATE, other), used={"t-2": NOW - 600.0})
    assert violations(SOUND, found, Allowed()) == []
    assert len(violations(SOUND, replace(found, used={"t-2": NOW - 1000.0}), Allowed())) == 1


def test_what_is_on_its_way_is_no_violation() -> None:
    young = pod(4, "", "Pending")
    young["metadata"]["creationTimestamp"] = JUST_NOW
    assert violations(SOUND, replace(SOUND, pods=(*SOUND.pods, young, leaving(5, JUST_NOW))), Allowed()) == []


def test_the_second_verifier_accepts_a_pruned_log_and_the_golden_record() -> None:
    assert list(chain.violations(LOG[1:])) == []
    golden = sorted((FOLDER / "audit-record").iterdir())
    assert [each for file in golden for each in chain.violations(file.read_bytes().splitlines(keepends=True))] == []


def test_the_checker_shares_no_code_with_the_product() -> None:
    product = ("enforcer", "webhook", "gpushare", "certs", "sidecar", "gpushare_cli", "tests.e2e", "tests.integration")
    folder = Path(chain.__file__).parent
    for file in CHECKER:
        words = [
            line.split()[1]
            for line in (folder / file).read_text().splitlines()
            if line.startswith(("from ", "import "))
        ]
        assert not [each for each in words if each.startswith(product)], file


def test_a_state_is_plain_data() -> None:
    assert json.loads(json.dumps(SOUND.pods)) == list(SOUND.pods)
