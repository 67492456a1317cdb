import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import status
from sidecar.status import MAX_BYTES, MAX_MESSAGES, MAX_TEXT, Message, Status, Use, harmless, parse

GOOD = {
    "ready": True,
    "containers": {"model": {"usedMiB": 3072, "quotaMiB": 4096, "state": "WithinQuota"}},
    "messages": [{"time": "2026-11-20T22:16:05Z", "text": "over quota"}],
}


def test_a_status_as_documented_is_read_whole() -> None:
    assert parse(json.dumps(GOOD).encode()) == Status(
        ready=True,
        uses=(Use(container="model", used_mib=3072, quota_mib=4096, state="WithinQuota"),),
        messages=(Message("2026-11-20T22:16:05Z", "over quota"),),
    )


def test_keys_of_a_newer_agent_are_no_obstacle() -> None:
    newer = {**GOOD, "gpus": [1], "containers": {"model": {**GOOD["containers"]["model"], "sm": 1}}}  # type: ignore[index]
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


@pytest.mark.parametrize(
    "use",
    [
        {"usedMiB": -1, "quotaMiB": 1},
        {"usedMiB": True, "quotaMiB": 1},
        {"usedMiB": 1.5, "quotaMiB": 1},
        {"usedMiB": "1", "quotaMiB": 1},
        {"usedMiB": 2**43 + 1, "quotaMiB": 1},
        {"usedMiB": 1},
        {},
        None,
        "x",
    ],
)
def test_amounts_that_cannot_be_are_left_out(use: object) -> None:
    found = parse(json.dumps({"ready": True, "containers": {"a": use, **GOOD["containers"]}}).encode())  # type: ignore[dict-item]
    assert found is not None
    assert [u.container for u in found.uses] == ["model"]


@pytest.mark.parametrize("name", ["", "A", 'a"} 1\nfoo{b="', "a" * 64, "-a", "٣", "a\n"])
def test_container_names_cannot_forge_metrics(name: str) -> None:
    found = parse(json.dumps({"containers": {name: {"usedMiB": 1, "quotaMiB": 1}}}).encode())
    assert found == Status()


def test_a_state_that_is_no_word_is_unknown() -> None:
    found = parse(json.dumps({"containers": {"a": {"usedMiB": 1, "quotaMiB": 1, "state": 'x"\n'}}}).encode())
    assert found is not None
    assert found.uses[0].state == "Unknown"


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
    found = parse(json.dumps({"messages": [entry, *GOOD["messages"]]}).encode())  # type: ignore[misc]
    assert found is not None
    assert len(found.messages) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*GOOD, "model", "usedMiB", "quotaMiB", "state", "time", "text"]), inner)
    ),
    max_leaves=20,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, JSON)))
def test_nothing_breaks_the_reader(raw: dict[str, object]) -> None:
    found = parse(json.dumps(raw).encode())
    assert found is not None
    assert all(line.isprintable() for m in found.messages for line in (m.text, m.time))


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    status.parse(data)
