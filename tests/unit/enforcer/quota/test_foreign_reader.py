"""Quotas of NVIDIA's claims beside our own: reported or enforced, kept over a restart, and off by default."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from enforcer.build_foreign import enforced_quotas
from enforcer.flags import parse
from enforcer.kill.circuit_breaker import NAME as BREAKER
from enforcer.kill.circuit_breaker import GuardedQuotas
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.foreign_claims import Cause
from enforcer.quota.foreign_reader import (
    FOLDER,
    MOST_SHOWN,
    NAME,
    EnforcedQuotas,
    ForeignInformer,
    ForeignRule,
    follow_foreign_claims,
    state_folder,
)
from enforcer.quota.informer import EVERYTHING, QuotaInformer
from enforcer.quota.types import ForeignClaims, OnExceed, Quota
from enforcer.runtime.manager import Manager, Wake
from gpushare import contract
from gpushare.reasons import Reason
from tests.support.wiring import Ids, Quotas, sampler
from tests.unit.enforcer.made import neighbour, quota
from tests.unit.enforcer.quota.nvidia_driver import CARDS, NODE, TEAM, Claim, Object, Pod, Result, device, nvml, piece

if TYPE_CHECKING:
    from gpushare.kube_client import KubeClient

MIB = 4096
SLICES = [piece([device(card) for card in CARDS], 1, 1)]
MOVED = [piece([device(CARDS[0], "GPU-1")], 2, 1)]
TEAMS = [{"metadata": {"name": TEAM, "uid": "n", "annotations": {contract.GRACE_PERIOD: "9s"}}}]


def share(*users: str, number: int = 0, **changes: Any) -> Pod:
    claim = Claim(f"c{number}", [Result("gpu", list(users), CARDS[0], MIB, changes=changes)])
    return Pod(f"tts-{number}", ["model", "other"], [], [], [claim])


def rule(state: Path, boot: str = "boot-1") -> ForeignRule:
    state_folder(state)
    made = ForeignRule(NODE, Checkpoint(state / FOLDER), Quotas(lambda: [quota()]), boot)
    made.set_gpus(nvml())
    return made


def books_of(made: ForeignRule, *pods: Pod, slices: list[Object] | None = None) -> QuotaInformer:
    books = ForeignInformer(made, Wake())
    kinds: dict[str, list[Object]] = {
        "claims": [claim.object(pod.name) for pod in pods for claim in pod.claims],
        "pods": [pod.object() for pod in pods],
        "namespaces": TEAMS,
        "slices": SLICES if slices is None else slices,
    }
    for kind in EVERYTHING:
        books.replace(kind, [{**each, "metadata": {"uid": "s"} | each.get("metadata", {})} for each in kinds[kind]])
    return books


def quotas(made: ForeignRule, *pods: Pod, slices: list[Object] | None = None) -> tuple[Quota, ...]:
    found = books_of(made, *pods, slices=slices).quotas()
    assert found is not None
    return found


def test_what_the_api_server_has_becomes_a_quota_under_the_namespaces_policy(tmp_path: Path) -> None:
    (found,) = quotas(rule(tmp_path), share("model"))
    assert (found.container, found.gpu, found.memory_mib, found.grace_seconds) == ("model", "GPU-0", MIB, 9.0)
    assert found.on_exceed is OnExceed.KILL


@pytest.mark.parametrize(
    ("boot", "damaged", "found"),
    [("boot-1", "", [Cause.CHANGED]), ("boot-2", "", []), ("", "", []), ("boot-1", "{}", []), ("boot-1", "[", [])],
)
def test_a_device_is_kept_over_a_restart_and_not_over_a_boot(
    tmp_path: Path, boot: str, damaged: str, found: list[Cause]
) -> None:
    quotas(rule(tmp_path), share("model"))
    if damaged:
        (tmp_path / FOLDER / NAME).write_text(damaged)
    after = rule(tmp_path, boot)
    assert [each.gpu for each in quotas(after, share("model"), slices=MOVED)] == ([] if found else ["GPU-1"])
    assert [each.cause for each in after.findings] == found


def test_while_nvml_was_not_read_earlier_quotas_stay(tmp_path: Path) -> None:
    made = rule(tmp_path)
    made.set_gpus(())
    Checkpoint(tmp_path / FOLDER).write([quota(pod="tts-0")])
    assert quotas(made, share("model")) == (quota(pod="tts-0"),)
    assert made.findings == ()


def test_operators_read_of_claims_that_cannot_be_read_and_not_of_whole_gpus(tmp_path: Path) -> None:
    made = rule(tmp_path)
    quotas(made, share("model", consumedCapacity={"memory": "0"}))
    assert ([each.cause for each in made.findings], made.problems()) == ([Cause.WHOLE], ())
    quotas(made, *(share("model", number=each, adminAccess=True) for each in range(MOST_SHOWN + 2)))
    assert len(made.findings) == MOST_SHOWN + 2
    assert made.problems()[0].split()[:2] == ["claim", f"{TEAM}/c0"]
    assert made.problems()[MOST_SHOWN].startswith("2 more claims")


FOREIGN = neighbour(gpu="GPU-0", container="model")


def test_a_report_shows_the_quota_and_lets_nobody_be_killed(tmp_path: Path) -> None:
    own, foreign = Quotas(lambda: [quota()]), Quotas(lambda: [FOREIGN])
    report, enforce = (EnforcedQuotas(own, foreign, report=each) for each in (True, False))
    assert report.read() == report.latest == (quota(), replace(FOREIGN, on_exceed=OnExceed.WARN))
    assert enforce.read() == enforce.latest == (quota(), FOREIGN)
    kills = [GuardedQuotas(tmp_path, each).in_force(FOREIGN) for each in (report, enforce)]
    assert kills == [None, FOREIGN]
    assert GuardedQuotas(tmp_path, report).in_force(quota()) == quota(), "our own stay enforced"
    (tmp_path / BREAKER).touch()
    assert GuardedQuotas(tmp_path, enforce).in_force(FOREIGN) is None


def build(state: Path, value: str, manager: Manager, cluster: Any = None) -> tuple[Checkpoint, Checkpoint]:
    options = parse(["--node", NODE, "--state", str(state), f"--foreign-claims={value}"])
    own = Checkpoint(state)
    return own, enforced_quotas(options, manager, cast("KubeClient", cluster), sampler(list), own)


@pytest.mark.parametrize(("value", "cluster"), [("off", object()), ("enforce", None)])
def test_without_the_value_or_without_a_cluster_nothing_is_added(tmp_path: Path, value: str, cluster: Any) -> None:
    manager = Manager()
    own, enforced = build(tmp_path, value, manager, cluster)
    assert enforced is own
    assert [*tmp_path.iterdir()] == []
    assert (manager._servers, manager._threads) == ([], {})


@pytest.mark.parametrize("value", ["report", "enforce"])
def test_with_the_value_four_kinds_are_followed_in_threads_of_their_own(tmp_path: Path, value: str) -> None:
    manager = Manager()
    own, enforced = build(tmp_path, value, manager, object())
    assert {name for name, _, _ in manager._servers} == {f"follow-foreign-{kind}" for kind in EVERYTHING}
    Checkpoint(tmp_path / FOLDER).write([FOREIGN])
    own.write([quota()])
    kept = FOREIGN if value == ForeignClaims.ENFORCE else replace(FOREIGN, on_exceed=OnExceed.WARN)
    assert enforced.read() == (quota(), kept)


def test_findings_are_problems_of_the_enforcer(tmp_path: Path) -> None:
    manager, made = Manager(), rule(tmp_path)
    follow_foreign_claims(manager, cast("KubeClient", None), made, Checkpoint(tmp_path / FOLDER), Ids({}), Wake())
    quotas(made, share("model", "other"))
    (problem,) = manager.problems()
    assert problem.reason is Reason.FOREIGN_CLAIM
    assert f"claim {TEAM}/c0 " in problem
