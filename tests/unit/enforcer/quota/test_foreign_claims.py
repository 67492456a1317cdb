"""Claims of NVIDIA's DRA driver: a quota where all can be read, else a finding and no quota."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from enforcer.quota.foreign_claims import Cause, Kept, Outcome, Seen, foreign_quotas
from enforcer.quota.foreign_objects import kept_claim
from enforcer.quota.from_claims import Terms
from enforcer.quota.kept_fields import MOST_USES, kept_pod
from enforcer.quota.types import OnExceed
from tests.unit.enforcer.quota.nvidia_driver import (
    CAPACITY,
    CARDS,
    NODE,
    TEAM,
    Card,
    Claim,
    Object,
    Pod,
    Result,
    World,
    device,
    nvml,
    piece,
)

CLAIMS = 1000
OPTED_IN = {TEAM: Terms()}


def run(
    pods: list[Object], claims: list[Object], slices: list[Object], kept: Kept | None = None, **changes: Any
) -> Outcome:
    seen = Seen(
        node=NODE, claims=[each for each in (kept_claim(claim, NODE) for claim in claims) if each], slices=slices,
        pods=[kept_pod(each, mapped=True) for each in pods], gpus=nvml(), terms=OPTED_IN,
    )  # fmt: skip
    return foreign_quotas(replace(seen, **changes), kept or Kept())


def rows(found: Outcome) -> dict[tuple[str, str, str], int]:
    return {(each.pod_uid, each.container, each.gpu): each.memory_mib for each in found.quotas}


def test_a_thousand_claims_give_the_quotas_of_the_oracle_and_no_others() -> None:
    claims, quotas, causes = 0, 0, Counter[str]()
    seed = 0
    while claims < CLAIMS:
        seed += 1
        world = World(seed)
        pods = [each.object() for each in world.pods]
        claims += len(world.claims())
        first = run(pods, world.claims(), world.slices(), own=world.own)
        away = run(pods, world.claims(), [], first.kept, own=world.own)
        steps = [(first, world.expected()), (away, world.expected())]
        world.swapped = True
        steps.append((run(pods, world.claims(), world.slices(), away.kept, own=world.own), world.expected()))
        for found, (expected, rejected) in steps:
            assert rows(found) == expected, seed
            assert len(found.quotas) == len(expected), seed
            assert sorted(each.claim for each in found.findings) == sorted(rejected), seed
            causes.update(each.cause for each in found.findings)
        quotas += len(first.quotas)
    assert quotas > CLAIMS // 4
    assert {*Cause} - causes.keys() == {Cause.MANY}, "each case occurs"


SLICES = [piece([device(card) for card in CARDS], 1, 1)]
MIB = 4096


def share(*users: str, card: Card = CARDS[0], mib: int = MIB, **changes: Any) -> Result:
    return Result("gpu", list(users), card, mib, changes=changes)


def one(result: Result, **changes: Any) -> Pod:
    return Pod("tts", ["model", "other"], ["proxy"], ["warm"], [Claim("c", [result], **changes)])


def of(pod: Pod, slices: list[Object] | None = None, kept: Kept | None = None, **changes: Any) -> Outcome:
    claims = [each.object(pod.name) for each in pod.claims]
    return run([pod.object()], claims, SLICES if slices is None else slices, kept, **changes)


@pytest.mark.parametrize("kind", ["template", "named", "extended"])
@pytest.mark.parametrize("user", ["model", "proxy"])
def test_one_container_and_init_containers_get_what_was_consumed(kind: str, user: str) -> None:
    found = of(one(share(user, "warm"), kind=kind))
    assert rows(found) == {("uid-tts", user, "GPU-0"): MIB, ("uid-tts", "warm", "GPU-0"): MIB}
    assert found.findings == ()
    assert not any(each.whole_pod for each in found.quotas), "a container without a share keeps what it has"


@pytest.mark.parametrize(
    ("result", "claim", "cause"),
    [
        (share("model", adminAccess=True), {}, Cause.ADMIN),
        (share("model"), {"reserved": 3}, Cause.SHARED),
        (share("model", device="gpu-9"), {}, Cause.DEVICE),
        (share("model", card=CARDS[4]), {}, Cause.NVML),
        (share("model", card=CARDS[5]), {}, Cause.EXCLUSIVE),
        (share("model", card=CARDS[6]), {}, Cause.NVML),
        (share("model", card=CARDS[7]), {}, Cause.TYPE),
        (share("model", consumedCapacity={"memory": "1.5Gi"}), {}, Cause.AMOUNT),
        (share("model", mib=0), {}, Cause.WHOLE),
        (share("model", mib=CAPACITY), {}, Cause.WHOLE),
        (share("model", "other"), {}, Cause.USERS),
        (share("model", "proxy"), {}, Cause.USERS),
        (share("warm"), {}, Cause.USERS),
        (share(), {}, Cause.USERS),
        (share("stranger", "model"), {"kind": "extended"}, Cause.USERS),
    ],
)
def test_what_cannot_be_read_gives_no_quota_and_one_finding(result: Result, claim: Any, cause: Cause) -> None:
    found = of(one(result, **claim))
    assert found.quotas == ()
    assert [(each.claim, each.cause) for each in found.findings] == [("c", cause)]


def test_the_newest_generation_counts_and_only_if_it_is_complete() -> None:
    old = piece([device(CARDS[0], "GPU-1")], 1, 1)
    newer = piece([device(CARDS[0])], 2, 1)
    assert rows(of(one(share("model")), [old, newer])).keys() == {("uid-tts", "model", "GPU-0")}
    incomplete = piece([device(CARDS[0])], 2, 2)
    assert [each.cause for each in of(one(share("model")), [old, incomplete]).findings] == [Cause.DEVICE]


def test_a_claim_that_is_not_known_leaves_its_container_without_a_quota() -> None:
    pod = one(share("model"))
    pod.claims.append(Claim("late", [Result("more", ["model"], CARDS[0], MIB)], allocated=False))
    found = of(pod)
    assert (found.quotas, [each.cause for each in found.findings]) == ((), [Cause.BESIDE])
    pod.claims[1].allocated = True
    assert rows(of(pod)) == {("uid-tts", "model", "GPU-0"): 2 * MIB}


def test_an_entry_without_a_claim_leaves_its_container_without_a_quota() -> None:
    pod = one(share("model"))
    made = pod.object()
    made["spec"]["containers"][0]["resources"]["claims"].append({"name": "e-late"})
    made["spec"]["resourceClaims"].append({"name": "e-late", "resourceClaimTemplateName": "some"})
    found = run([made], [pod.claims[0].object("tts")], SLICES)
    assert (found.quotas, [each.cause for each in found.findings], found.kept.uses) == ((), [Cause.BESIDE], {})


def test_a_device_that_becomes_another_gpu_gives_no_quota_in_this_boot() -> None:
    pod, other = one(share("model")), [piece([device(CARDS[0], "GPU-1")], 2, 1)]
    kept = of(pod).kept
    for slices, cause in ((other, [Cause.CHANGED]), ([], []), (other, [Cause.CHANGED]), (SLICES, [])):
        found = of(pod, slices, kept)
        kept = found.kept
        assert [each.cause for each in found.findings] == cause
        assert rows(found) == ({} if cause else {("uid-tts", "model", "GPU-0"): MIB})
    assert rows(of(pod, other)).keys() == {("uid-tts", "model", "GPU-1")}, "another boot"


def test_nothing_is_kept_of_claims_and_pods_that_are_gone() -> None:
    kept = of(one(share("model"))).kept
    assert (len(kept.devices), len(kept.uses)) == (1, 1)
    assert run([], [], SLICES, kept).kept == Kept()


def test_a_pod_status_that_is_written_later_changes_nothing() -> None:
    pod = one(share("model"))
    claims, made = [pod.claims[0].object("tts")], pod.object()
    kept = run([made], claims, SLICES).kept
    made["status"]["resourceClaimStatuses"][0]["resourceClaimName"] = "none"
    assert rows(run([made], claims, SLICES, kept)) == {("uid-tts", "model", "GPU-0"): MIB}
    assert rows(run([made], claims, SLICES)) == {}


def test_what_is_on_another_node_is_nobodys_business_here() -> None:
    pod = one(share("model"))
    claim = pod.claims[0].object("tts")
    claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] = ["gpu-8"]
    assert kept_claim(claim, NODE) is None
    there = pod.object()
    there["spec"]["nodeName"] = "gpu-8"
    assert run([there], [pod.claims[0].object("tts")], SLICES) == Outcome((), (), Kept())


def test_a_pod_of_which_not_all_uses_are_kept_gives_no_quota() -> None:
    pod = one(share("model")).object()
    pod["spec"]["containers"][1]["resources"]["claims"] = [{"name": f"n{each}"} for each in range(MOST_USES)]
    pod["spec"]["resourceClaims"] += [
        {"name": f"n{each}", "resourceClaimName": f"n{each}"} for each in range(MOST_USES)
    ]
    found = run([pod], [Claim("c", [share("model")]).object("tts")], SLICES)
    assert (found.quotas, [each.cause for each in found.findings]) == ((), [Cause.MANY])


def test_a_share_of_our_own_driver_on_the_same_gpu_counts_alone() -> None:
    found = of(one(share("model")), own={("uid-tts", "GPU-0")})
    assert (found.quotas, [each.cause for each in found.findings]) == ((), [Cause.OWN])


def test_nobody_is_killed_in_a_namespace_that_has_not_opted_in() -> None:
    (plain,) = of(one(share("model")), terms={}).quotas
    assert plain.on_exceed is OnExceed.WARN
    terms = Terms(on_exceed=OnExceed.KILL_CONTAINER, grace_seconds=9.0, tolerance_percent=10)
    (found,) = of(one(share("model")), terms={TEAM: terms}).quotas
    assert (found.on_exceed, found.grace_seconds, found.tolerance_mib) == (OnExceed.KILL_CONTAINER, 9.0, MIB // 10)
