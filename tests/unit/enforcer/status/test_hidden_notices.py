"""Whoever may hold memory that nobody is counted for is told once, what to close; and operators see who that is."""

from dataclasses import replace

from enforcer.audit.kill_records import intent_record, warning_fields
from enforcer.detection.hidden import Finding
from enforcer.detection.types import Decision, KillDecision
from enforcer.oom.diagnosis import Failure, diagnosis_message
from enforcer.oom.memory_pressure import update_pressure
from enforcer.status import messages
from enforcer.status.hidden_notices import HiddenNotices
from enforcer.status.node_status import MAX_PIDS, Snapshot, status
from enforcer.status.pod_status import Seen
from gpushare.reasons import Reason
from tests.support.wiring import Messages
from tests.unit.enforcer.detection.test_hidden import ALONE, MINE, descriptors, found, limited, mine, theirs
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, POD, holder, neighbour, quota
from tests.unit.enforcer.status.test_pod_status_files import seen, snapshot

THEIR_POD = neighbour().pod_uid
TWO = found(has=(descriptors(), descriptors(250, NEIGHBOUR, THEIR_POD)))
ONE = found(mine(), theirs(), has=(descriptors(),), limits=limited(theirs()))


def with_finding(finding: Finding | None) -> Snapshot:
    return replace(
        snapshot(seen(holder(101, 1000))),
        unaccounted={GPU: (12_288, 8)},
        hidden={} if finding is None else {GPU: finding},
    )


def test_each_that_has_descriptors_is_told_once_and_again_after_it_had_none() -> None:
    sent = Messages()
    notices = HiddenNotices(sent)
    for finding in (ONE, ONE, TWO, TWO, None, ONE):
        notices.observe(with_finding(finding))
    told = [(each.quota.container_id, each.reason) for each in sent.sent]
    assert told == [(each, Reason.UNACCOUNTED_MEMORY) for each in (CONTAINER, NEIGHBOUR, CONTAINER)]
    first = sent.sent[0].note
    assert "12Gi of " in first
    assert "3 descriptors of GPU memory (pid 150)" in first
    assert "cuMemExportToShareableHandle" in first
    assert "other-0" not in first


def test_one_that_was_alone_is_told_what_it_likely_is() -> None:
    sent = Messages()
    HiddenNotices(sent).observe(with_finding(found(mine(500), quotas=(MINE,), present=ALONE)))
    (only,) = sent.sent
    assert (only.quota.container_id, "cudaMallocManaged" in only.note) == (CONTAINER, True)


def test_the_nodes_status_names_them() -> None:
    (gpu,) = status(with_finding(ONE))["gpus"]
    assert (gpu["unaccountedMib"], gpu["knownMib"]) == (12_288, 8)
    assert gpu["descriptorHolders"] == [
        {"container": "asr/tts-0/model", "descriptors": 3, "processes": 1, "pids": [150]}
    ]
    assert gpu["hiddenIn"] == {"container": "asr/tts-0/model", "mib": ONE.owner_mib}
    (gpu,) = status(with_finding(None))["gpus"]
    assert (gpu["withheldMib"], gpu["descriptorHolders"], gpu["hiddenIn"]) == (0, [], None)


def test_of_a_tenants_many_processes_with_descriptors_the_status_names_a_few() -> None:
    many = found(has=tuple(descriptors(pid) for pid in range(1000, 6000)))
    (gpu,) = status(with_finding(many))["gpus"]
    (named,) = gpu["descriptorHolders"]
    assert (named["descriptors"], named["processes"]) == (15_000, 5000)
    assert named["pids"] == list(range(1000, 1000 + MAX_PIDS))


def test_warning_kill_and_record_have_a_reason_of_their_own() -> None:
    decision = KillDecision(
        decision=Decision.WARNED, quota=quota(), used_mib=12_384, kill_in=2.0, unaccounted_mib=12_288
    )
    warned = messages.over_quota(decision)
    assert (warned.reason, "12288 MiB of them in no process's row" in warned.note) == (Reason.UNACCOUNTED_MEMORY, True)
    assert messages.over_quota(replace(decision, unaccounted_mib=0)).reason is Reason.OVER_QUOTA
    assert messages.used_amounts(warned.note) == ("model", 12_384, 4096), "and is read as any other"
    mine = {"cause": "UnaccountedMemory", "unaccountedMiB": 12_288}
    assert mine.items() <= intent_record("gpu-7", decision, [holder(150, 12_288)]).items()
    assert mine.items() <= warning_fields("gpu-7", decision).items()
    assert "cause" not in warning_fields("gpu-7", replace(decision, unaccounted_mib=0))


def test_a_neighbour_that_failed_beside_it_is_told_that_it_is_likely_why() -> None:
    full = replace(snapshot(seen(holder(101, 1000), beside=15_000)), quotas=(quota(),))
    failure = Failure(pod_uid=POD, container_id=CONTAINER, exit_code=1, finished=1.0)
    notes = []
    for mib in (0, 512, 9000):
        (mark,) = update_pressure({}, Seen.of(replace(full, unaccounted={GPU: (mib, 0)})), 1.0).values()
        notes.append(diagnosis_message(failure, Reason.GPU_FULL, mark).note)
    assert ["9000 MiB of them counted for nobody" in each for each in notes] == [False, False, True]
    assert notes[0] == notes[1]
