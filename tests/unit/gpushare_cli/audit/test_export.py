"""Which records are asked for, and how they leave: those alone, each one line."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enforcer.audit.log import segments
from enforcer.audit.record import Kind
from gpushare.errors import ConfigError
from gpushare_cli.audit import filters
from gpushare_cli.audit.filters import RecordFilter, row
from gpushare_cli.main import main
from tests.unit.gpushare_cli.audit_logs import run, write

NOW = datetime(2026, 11, 20, 22, 30, tzinfo=UTC)
RESULTS = st.sampled_from(["Killed", "AlreadyExited"])
NAMES = st.sampled_from(["a", "b", "A", ""])
POD = st.one_of(st.text(), st.none(), st.integers(), st.dictionaries(st.sampled_from(["namespace", "name"]), NAMES))
WILD: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MOMENTS = st.integers(0, 365 * 86400).map(lambda seconds: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))
TIMES = st.text(max_size=5) | MOMENTS.map(lambda at: at.isoformat().replace("+00:00", "Z"))
RECORDS = st.fixed_dictionaries(
    {"kind": st.sampled_from(list(Kind)).map(str) | st.text(max_size=3), "time": TIMES, "seq": st.integers(1)},
    optional={
        "pod": POD, "container": NAMES | WILD, "node": NAMES | WILD,
        "result": RESULTS | WILD,
        "gpu": WILD, "usedMiB": WILD, "targets": WILD, "note": WILD,
    },
)  # fmt: skip
ASKED = st.none() | NAMES
WANTED = st.builds(
    RecordFilter,
    namespace=ASKED, pod=ASKED, node=ASKED,
    kind=st.none() | st.sampled_from(["WARNED", "OUTCOME"]), result=st.none() | RESULTS,
    since=st.none() | MOMENTS,
)  # fmt: skip


def plainly(wanted: RecordFilter, record: dict[str, Any]) -> bool:
    """What the filters mean, one sentence at a time."""
    pod: Any = record.get("pod")
    pod = pod if isinstance(pod, dict) else {}
    recent = True
    if wanted.since is not None and re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", record["time"]):
        recent = datetime.fromisoformat(record["time"]) >= wanted.since
    return (
        (wanted.namespace is None or pod.get("namespace") == wanted.namespace)
        and (wanted.pod is None or pod.get("name") == wanted.pod)
        and (wanted.node is None or record.get("node") == wanted.node)
        and (wanted.kind is None or record["kind"] == wanted.kind)
        and (wanted.result is None or record.get("result") == wanted.result)
        and recent
    )


@example(
    wanted=RecordFilter(result="Killed"),
    record={"seq": 1, "kind": "OUTCOME", "time": "t", "result": {"Killed": 1}},
)
@given(wanted=WANTED, record=RECORDS)
def test_filters_take_what_they_say_of_records_of_any_shape(wanted: RecordFilter, record: dict[str, Any]) -> None:
    assert wanted.matches(record) == plainly(wanted, record)
    assert all(isinstance(cell, str | int | None) for cell in row(record)[:3])


@pytest.mark.parametrize(
    ("text", "back"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("7d", 7 * 86400), ("2026-11-20T22:00:00Z", 1800), ("0s", 0),
     ("2026-11-20 22:00", 1800), ("2026-11-20T23:00:00+01:00", 1800), ("2026-11-20", 22.5 * 3600)],
)  # fmt: skip
def test_since_is_an_age_or_a_time(text: str, back: float) -> None:
    assert filters.since(text, NOW) == NOW - timedelta(seconds=back)


@pytest.mark.parametrize("text", ["", "2", "2w", "-1h", "yesterday", "999999d", "\u0662h", "1e3s", "x" * 9999])
def test_another_since_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time; write an age such as 90s, 30m, 2h or 7d") as caught:
        filters.since(text, NOW)
    assert len(caught.value.message) < 400


GOLDEN = """\
SEQ  TIME                      KIND     POD        CONTAINER  GPU           USED     QUOTA    RESULT  PIDS
1    2026-11-20T22:00:00.000Z  INTENT   ml/tts-0   model-0    GPU-01234567  9216Mi   4096Mi   N/A     501
2    2026-11-20T22:01:00.000Z  OUTCOME  asr/tts-1  model-1    GPU-01234567  N/A      N/A      Killed  501
"""


def test_show_looks_like_this(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, 2)
    code, out, err = run(capsys, "show", "--state", tmp_path)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [line.split() for line in GOLDEN.splitlines()]
    assert (
        len({line.index(word) for line, word in zip(out.splitlines(), ["KIND", "INTENT", "OUTCOME"], strict=True)}) == 1
    )


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ([], [1, 2, 3, 4, 5, 6]), (["-n", "asr"], [2, 4, 6]), (["--pod", "tts-0"], [1, 4]),
        (["--node", "gpu-8"], []),
        (["--since", "2026-11-20T22:04:00Z"], [5, 6]), (["-n", "asr", "--pod", "tts-0", "--since", "2026-11-20"], [4]),
    ],
)  # fmt: skip
def test_export_writes_what_is_asked_for(words: list[str], numbers: list[int], tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    code, out, _ = run(capsys, "export", "--state", tmp_path, *words)
    assert (code, [json.loads(line)["seq"] for line in out.splitlines()]) == (0, numbers)


def test_a_whole_export_is_the_log_and_verifies_as_it(tmp_path: Path, capsys: Any) -> None:
    head = write(tmp_path)
    copy = tmp_path / "copy.jsonl"
    copy.write_text(run(capsys, "export", "--state", tmp_path)[1])
    code, out, _ = run(capsys, "verify", "--log", copy, "--anchor", head)
    assert (code, out) == (0, f"ok: 6 records in 1 segment are intact; 1 anchor matches\nhead {head}\n")


RUBBISH = [
    b"rubbish\n",
    b"\xff\xfe\n",
    b"{}\n",
    b'{"seq":3,"kind":"INTENT"}\n',
    b"[" * 9000 + b"\n",
    b"\x1b[2J\r\n",
    b'{"seq":9',
]


def test_bad_lines_are_counted_and_never_in_the_way(tmp_path: Path, capsysbinary: Any) -> None:
    write(tmp_path)
    last = segments(tmp_path / "audit")[-1]
    last.write_bytes(last.read_bytes() + b"".join(RUBBISH))
    for words in (["show"], ["export"]):
        assert main(["audit", *words, "--state", str(tmp_path)]) == 1
        out, err = capsysbinary.readouterr()
        assert out.count(b"2026-11-20T22:") == 6, words
        assert b"lines are not records; run 'gpu-share audit verify'" in err
        assert b"\x1b" not in out
    assert main(["audit", "export", "--format", "raw", "--state", str(tmp_path)]) == 0
    stored = b"".join(file.read_bytes() for file in segments(tmp_path / "audit"))
    assert capsysbinary.readouterr().out == stored


def test_a_part_without_line_ends_is_left_and_the_next_is_read(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    first, *_ = segments(tmp_path / "audit")
    with first.open("r+b") as file:
        file.truncate(2**40)  # a hole: it takes no room on the disk
    code, out, _ = run(capsys, "export", "--state", tmp_path)
    assert (code, [json.loads(line)["seq"] for line in out.splitlines()]) == (1, [1, 2, 3, 4, 5, 6])


def test_a_raw_export_leaves_nothing_out_and_a_long_line_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: Any
) -> None:
    monkeypatch.setattr("gpushare_cli.audit.log_reader.ENDLESS", 3)
    write(tmp_path)
    last = segments(tmp_path / "audit")[-1]
    last.write_bytes(last.read_bytes() + b"x" * 50_000 + b"\nafter it\n")
    assert main(["audit", "export", "--format", "raw", "--state", str(tmp_path)]) == 0
    assert capsysbinary.readouterr().out == b"".join(file.read_bytes() for file in segments(tmp_path / "audit"))
    monkeypatch.undo()
    assert main(["audit", "show", "--state", str(tmp_path)]) == 1
    assert b"2 lines are not records" in capsysbinary.readouterr().err
