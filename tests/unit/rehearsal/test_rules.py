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
from tests.rehearsal.state import JOB, LABEL, PLAIN, STEADY, Allowed, Object, State

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
        "spec": {"resourceClaims": [{"name": "gpu-share", "resourceClaimTemplateName": "template-1"}]},
        "status": {"phase": phase, "containerStatuses": [status] if phase == "Running" else []},
    }  # fmt: skip


def leaving(number: int, since: str) -> Object:
    found = pod(number, PLAIN)
    found["metadata"]["deletionTimestamp"] = since
    return found


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
    cdi=frozenset({"claim-uid-1", "claim-uid-2"}), kept={"claim-uid-1": 1, "claim-uid-2": 1},
    status=frozenset({"pod-uid-1"}), mounts=frozenset({"pod-uid-1"}), cgroups=frozenset({"pod-uid-1"}),
    daemons={"gpu-0": (100,)}, alive={"pod-uid-1": NOW}, over={"pod-uid-1": 3.0}, audit=log(1, 2, 3), check=(),
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


def edited(state: State) -> State:
    return replace(
        state, audit=(state.audit[0], state.audit[1].replace(b'"usedMib":2', b'"usedMib":9'), state.audit[2])
    )


def rehashed(state: State) -> State:
    """Edit a record and give it a hash that fits: the one after it shows it."""
    body = state.audit[1].replace(b'"usedMib":2', b'"usedMib":9').rpartition(chain.MARK)[0]
    digest = hashlib.sha256(body + b"}").hexdigest().encode()
    return replace(state, audit=(state.audit[0], body + chain.MARK + digest + chain.END, state.audit[2]))


RESTARTED = {"containerStatuses": [{"name": "main", "restartCount": 1, "state": {"running": {}}}]}
SIDECAR_RESTARTED = {"initContainerStatuses": [{"name": SIDECAR, "restartCount": 1, "state": {"running": {}}}]}
WARMED_AGAIN = {"initContainerStatuses": [{"name": "warm-up", "restartCount": 1, "state": {"terminated": {}}}]}
CRASHED = {"containerStatuses": [{"name": "main", "restartCount": 0, "state": {"terminated": {}}}]}
DEFECTS: dict[str, tuple[Change, str]] = {
    "a tenant is gone": (lambda state: replace(state, pods=state.pods[1:], **without_first()), "pod-1 was lost"),
    "a tenant was evicted": (with_pod(status={"phase": "Failed"}), "pod-1 does not run"),
    "a tenant's container ended": (with_pod(status=CRASHED), "pod-1 does not run"),
    "a tenant ends after a short notice": (
        lambda state: replace(state, pods=state.pods[1:], announced=NOW - 29.0, **without_first()),
        "pod-1 was lost",
    ),
    "a tenant crashes after an announcement": (
        lambda state: with_pod(status=CRASHED)(replace(state, announced=NOW - 90.0)),
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
    "a record was edited": (edited, "record 2 was changed"),
    "a record was edited with its hash": (rehashed, "record 3 does not follow record 2"),
    "the end of the log is lost": (set_to(audit=SOUND.audit[:2]), "record 3 is lost"),
    "a record in between is lost": (set_to(audit=(SOUND.audit[0], SOUND.audit[2])), "does not follow record 1"),
    "the log began again": (set_to(audit=()), "record 1 is lost"),
    "a stale CDI file": (set_to(cdi=SOUND.cdi | {"gone"}), "CDI file of claim gone"),
    "a stale checkpoint": (set_to(kept={**SOUND.kept, "gone": 1}), "checkpoint of claim gone"),
    "a checkpoint of tomorrow": (set_to(kept={**SOUND.kept, "claim-uid-1": 2}), "is of version 2"),
    "a checkpoint is lost": (set_to(kept={"claim-uid-2": 1}), "pod-1 runs without the checkpoint"),
    "a CDI file is lost": (set_to(cdi=frozenset({"claim-uid-2"})), "pod-1 runs without the CDI file"),
    "a stale status folder": (set_to(status=frozenset({"gone"})), "status folder of pod gone"),
    "a stale mount": (set_to(mounts=frozenset({"gone"})), "mount of pod gone"),
    "a stale control group": (set_to(cgroups=frozenset({"gone"})), "control group of pod gone"),
    "a claim without its pod": (
        lambda state: replace(state, claims=(*state.claims, claim(9, "0Gi"))),
        "claim-9 is an orphan",
    ),
    "a template that nobody uses": (
        set_to(templates=(TEMPLATE, {"metadata": {**TEMPLATE["metadata"], "name": "t-2"}})),
        "t-2 is an orphan",
    ),
    "a lost finalizer": (with_claim(lambda found: found["metadata"].pop("finalizers")), "has lost its finalizer"),
    "a daemon was restarted": (set_to(daemons={"gpu-0": (100, 101)}), "replaced 1 times"),
    "a daemon is gone": (set_to(daemons={}), "gpu-0 is gone"),
    "the webhook fails open": (set_to(admitted="open"), "failed open"),
    "the webhook refuses everybody": (set_to(admitted="refused"), "is refused"),
    "the check is red": (set_to(check=("webhook replicas: 1 of 2 ready",)), "check: webhook replicas: 1 of 2"),
    "the check sees nothing": (set_to(red=False), "was green while a part was away"),
}


def without_first() -> dict[str, Any]:
    """What goes with pod 1, so that its absence alone is left to see."""
    return {
        "claims": SOUND.claims[1:], "cdi": frozenset({"claim-uid-2"}), "kept": {"claim-uid-2": 1}, "over": {},
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
    twice = replace(SOUND, daemons={"gpu-0": (100, 101, 102)})
    assert violations(SOUND, replace(SOUND, daemons={"gpu-0": (100, 101)}), Allowed(daemons=1)) == []
    assert violations(SOUND, twice, Allowed(daemons=1)) == ["the MPS daemon in gpu-0 was replaced 2 times"]


def test_a_loss_that_was_announced_in_time_is_no_violation() -> None:
    gone = replace(SOUND, pods=SOUND.pods[1:], announced=NOW - 31.0, **without_first())
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
    assert list(chain.violations(SOUND.audit[1:])) == []
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
