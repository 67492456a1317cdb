import pytest

from enforcer.detection.debt import key_of
from enforcer.detection.doubt import Threshold, doubted, followed, is_mistake
from enforcer.detection.kill_history import RecentKill, tenant_of
from enforcer.detection.storm import Present, opened
from tests.unit.enforcer.made import quota

ASR, TTS, CHAT = (quota(namespace=name, pod_uid=name, memory_mib=4096) for name in ("asr", "tts", "chat"))
KEY = key_of(ASR)


def test_a_lower_threshold_is_in_doubt_for_ten_minutes_and_a_higher_one_is_not() -> None:
    first = followed({}, [ASR], 100.0)
    assert first == {KEY: Threshold(4096)}
    lower = followed(first, [quota(namespace="asr", pod_uid="asr", memory_mib=512)], 200.0)
    assert lower == {KEY: Threshold(512, 200.0)}
    assert followed(lower, [quota(namespace="asr", pod_uid="asr", memory_mib=512)], 799.0) == lower
    assert followed(lower, [quota(namespace="asr", pod_uid="asr", memory_mib=512)], 800.0) == {KEY: Threshold(512)}
    assert followed(lower, [ASR], 300.0) == {KEY: Threshold(4096)}


def test_a_lower_tolerance_is_a_lower_threshold() -> None:
    wide, narrow = (quota(pod_uid="asr", tolerance_mib=mib) for mib in (512, 0))
    assert followed(followed({}, [wide], 1.0), [narrow], 2.0) == {KEY: Threshold(4096, 2.0)}


def test_containers_that_are_gone_or_were_given_nothing_are_not_remembered() -> None:
    assert followed({KEY: Threshold(4096)}, [quota(memory_mib=0)], 1.0) == {}


@pytest.mark.parametrize(("stated", "found"), [(None, False), (4096, False), (512, False), (4097, True)])
def test_a_quota_below_what_the_environment_states_is_in_doubt(stated: int | None, *, found: bool) -> None:
    one = quota(stated_mib=stated)
    assert doubted([one], {}) == ({tenant_of(one)} if found else frozenset())
    assert doubted([quota(memory_mib=0, stated_mib=4096)], {}) == frozenset()


def test_doubt_of_several_namespaces_is_a_mistake_and_of_one_is_not() -> None:
    one, other, third = map(tenant_of, (ASR, TTS, CHAT))
    assert is_mistake({one, other, third}, frozenset({one, third}))
    assert not is_mistake({one, other}, frozenset({one, third}))
    assert not is_mistake({one, ("asr", ("another", "model"))}, frozenset({one, ("asr", ("another", "model"))}))


def test_a_mistake_opens_the_breaker_at_the_second_namespace_and_not_while_nobody_is_due() -> None:
    quotas = [ASR, TTS, CHAT, *(quota(namespace="far", pod_uid=f"far-{n}") for n in range(9))]
    present = Present.of(quotas, frozenset())
    kills = [RecentKill(90.0, *tenant_of(ASR))]
    doubtful = frozenset({tenant_of(ASR), tenant_of(TTS)})
    assert opened({tenant_of(TTS)}, present, kills, 100.0, 3, 60.0, doubtful) is not None
    assert opened({tenant_of(TTS)}, present, kills, 100.0, 3, 60.0) is None
    assert opened({tenant_of(CHAT)}, present, kills, 100.0, 3, 60.0, doubtful) is None
    assert opened(frozenset(), present, kills, 100.0, 3, 60.0, doubtful) is None
