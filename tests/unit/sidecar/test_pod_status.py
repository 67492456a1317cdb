import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar import metrics, pod_status
from sidecar.pod_status import MAX_BYTES, MAX_MESSAGES, MAX_TEXT, Gpu, Message, Status, Use, harmless, parse

GPU = "GPU-a1000000-0000-4000-8000-000000000000"
CONTAINER = {"container": "model", "gpu": GPU, "usedMiB": 3072, "quotaMiB": 4096, "state": "Within"}
GOOD: dict[str, Any] = {
    "time": "2026-11-20T22:16:05.250Z",
    "ready": True,
    "waiting": "",
    "gpus": [{"uuid": GPU, "model": "NVIDIA H100", "memoryMiB": 81008, "usedByOthersMiB": 20480}],
    "containers": [CONTAINER],
    "messages": [{"time": "2026-11-20T22:16:05Z", "text": "over quota"}],
}


def test_a_status_as_documented_is_read_whole() -> None:
    assert parse(json.dumps(GOOD).encode()) == Status(
        time="2026-11-20T22:16:05.250Z",
        ready=True,
        gpus=(Gpu(uuid=GPU, memory_mib=81008, others_mib=20480),),
        uses=(Use(container="model", gpu=GPU, used_mib=3072, quota_mib=4096, state="Within"),),
        messages=(Message("2026-11-20T22:16:05Z", "over quota"),),
    )


def test_a_borrower_is_short_of_memory_at_its_limit_and_not_at_its_quota() -> None:
    use = Use(container="model", gpu=GPU, used_mib=5000, quota_mib=4096, state="Within", limit_mib=12_288)
    assert (use.borrowed_mib, Status(uses=(use,)).short(0.95)) == (904, False)
    assert parse(json.dumps({"containers": [{**CONTAINER, "usedMiB": 5000, "limitMiB": 12_288}]}).encode()) == Status(
        uses=(use,)
    )


def test_keys_of_a_newer_enforcer_are_no_obstacle() -> None:
    newer = {**GOOD, "more": [1], "containers": [{**CONTAINER, "sm": 1}, "x", 1]}
    assert parse(json.dumps(newer).encode()) == parse(json.dumps(GOOD).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"ready": tru',
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"\x00" * 100,
        b"[" * 100_000,
        b'{"a":' * 40_000,
        b'{"ready": ' + b"9" * 6000 + b"}",
        b" " * (MAX_BYTES + 1),
    ],
    ids=range(12),
)
def test_what_is_no_status_is_none(data: bytes) -> None:
    assert parse(data) is None


@pytest.mark.parametrize("ready", [1, "true", None, [], {}, "yes"])
def test_only_true_is_ready(ready: object) -> None:
    assert parse(json.dumps({"ready": ready}).encode()) == Status()


@pytest.mark.parametrize("amount", [-1, True, 1.5, "1", 2**43 + 1, None, [], {}])
def test_amounts_that_cannot_be_are_not_known(amount: object) -> None:
    raw = {"containers": [{**CONTAINER, "usedMiB": amount}, {**CONTAINER, "quotaMiB": amount}]}
    gpus = [{**GOOD["gpus"][0], "usedByOthersMiB": amount}, {**GOOD["gpus"][0], "memoryMiB": amount}]
    found = parse(json.dumps({**raw, "gpus": gpus}).encode())
    assert found is not None
    assert [use.used_mib for use in found.uses] == [None]
    assert [gpu.others_mib for gpu in found.gpus] == [None]


@pytest.mark.parametrize("name", ["", "A", 'a"} 1\nfoo{b="', "a" * 64, "-a", "٣", "a\n", None, 1])
def test_container_names_cannot_forge_metrics(name: object) -> None:
    assert parse(json.dumps({"containers": [{**CONTAINER, "container": name}]}).encode()) == Status()


@pytest.mark.parametrize("uuid", ["", 'GPU-"} 1\nfoo{b="', "G" * 81, "GPU-٣", None, 1])
def test_gpu_names_cannot_forge_metrics(uuid: object) -> None:
    raw = {"containers": [{**CONTAINER, "gpu": uuid}], "gpus": [{**GOOD["gpus"][0], "uuid": uuid}]}
    assert parse(json.dumps(raw).encode()) == Status()


def test_a_state_that_is_no_word_is_unknown() -> None:
    found = parse(json.dumps({"containers": [{**CONTAINER, "state": 'x"\n'}]}).encode())
    assert found is not None
    assert found.uses[0].state == "Unknown"


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("2026-11-20T22:16:05.250Z", 1795212965.25),
        ("2026-11-20T23:16:05+01:00", 1795212965.0),
        ("2026-11-20T22:16:05", None),
        ("0001-01-01T00:00:00+23:00", None),
        ("9999-12-31T23:59:59-23:00", 253402383599.0),
        ("now", None),
        ("", None),
        (5, None),
    ],
)
def test_the_time_of_writing_is_read_where_there_is_one(time: object, seconds: float | None) -> None:
    found = parse(json.dumps({"time": time}).encode())
    assert found is not None
    assert found.written == seconds


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, mit Umläuten, 日本", "plain, mit Umläuten, 日本"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2028x\x85\x00", r"\u2028x\x85\x00"),
        ("\ud800", r"\ud800"),
    ],
)
def test_text_is_made_harmless(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_many_and_long_messages_are_cut() -> None:
    messages = [{"time": "2026", "text": f"{n} " + "\x00" * 2000} for n in range(500)]
    found = parse(json.dumps({"messages": messages[:20]}).encode())
    assert found is not None
    assert all(len(m.text) == MAX_TEXT for m in found.messages)
    found = parse(json.dumps({"messages": [{"time": "2026", "text": str(n)} for n in range(500)]}).encode())
    assert found is not None
    assert [m.text for m in found.messages] == [str(n) for n in range(500 - MAX_MESSAGES, 500)]


@pytest.mark.parametrize("entry", [None, 1, [], {}, {"time": "now\n", "text": "x"}, {"time": "2026", "text": 1}])
def test_messages_of_another_shape_are_left_out(entry: object) -> None:
    found = parse(json.dumps({"messages": [entry, *GOOD["messages"]]}).encode())
    assert found is not None
    assert len(found.messages) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*GOOD, *CONTAINER, *GOOD["gpus"][0], "text"]), inner)
    ),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # its tables of letters are made at the first draw
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, JSON)))
def test_nothing_breaks_the_reader(raw: dict[str, object]) -> None:
    found = parse(json.dumps(raw).encode())
    assert found is not None
    assert all(line.isprintable() for m in found.messages for line in (m.text, m.time))
    assert found.written is None or found.written > 0
    assert metrics.render(found, messages=0, rss_bytes=0).endswith(b"\n")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    pod_status.parse(data)


@pytest.mark.parametrize(
    ("used", "others", "short"),
    [(94, 0, False), (95, 0, True), (None, 0, False), (0, 951, True), (51, 900, True), (50, 900, False)],
)
def test_memory_is_short_where_a_quota_or_a_gpu_is_nearly_used_up(
    used: int | None, others: int, *, short: bool
) -> None:
    use = Use(container="m", gpu="GPU-1", used_mib=used, quota_mib=100, state="Within")
    found = Status(uses=(use,), gpus=(Gpu(uuid="GPU-1", memory_mib=1000, others_mib=others),))
    assert found.short(0.95) is short
    nothing = Use(container="m", gpu="GPU-1", used_mib=0, quota_mib=0, state="Within")
    assert not Status(uses=(nothing,)).short(0.95)
