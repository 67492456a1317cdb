import json
import os
import resource
from pathlib import Path

import pytest

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import GENESIS, ChainHead, Kind, digest_of
from gpushare_cli.main import main


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with AuditLog(tmp_path / "audit", segment_bytes=900) as log:
        for number in range(6):
            pod = {"namespace": "asr" if number % 2 else "ml", "name": f"tts-{number}", "uid": "u"}
            kind = Kind.INTENT if number < 3 else Kind.OUTCOME
            targets = [{"pid": 500 + number}]
            log.append(kind, {"pod": pod, "container": "model\x1b[31m", "gpu": "GPU-0123456789", "targets": targets})
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["audit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_whole_log_holds(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "verify", "--state", state)
    assert code == 0
    assert "ok: 6 records in" in out
    head = out.split("head ")[1].strip()
    assert run(capsys, "verify", "--state", state, "--anchor", head)[0] == 0


def test_an_edited_line_is_named_by_file_and_number(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = segments(state / "audit")[1]
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"pid":50', b'"pid":60')
    file.write_bytes(b"".join(lines))
    code, out, _ = run(capsys, "verify", "--state", state)
    assert code == 1
    assert f"{file.name}:2: " in out
    assert "was edited" in out


def test_a_missing_segment_is_named_where_it_is_missing(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = segments(state / "audit")
    files[0].unlink()
    code, out, _ = run(capsys, "verify", "--state", state)
    assert code == 1
    assert f"{files[1].name}:1: " in out
    assert "missing before record" in out


def test_a_renamed_segment_is_named(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = segments(state / "audit")[-1]
    last.rename(last.with_name("kills-000000000099.jsonl"))
    code, out, _ = run(capsys, "verify", "--state", state)
    assert code == 1
    assert "renamed" in out


def test_a_cut_tail_needs_the_anchor(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = run(capsys, "verify", "--state", state)[1].split("head ")[1].strip()
    segments(state / "audit")[-1].unlink()
    assert run(capsys, "verify", "--state", state)[0] == 0
    code, out, _ = run(capsys, "verify", "--state", state, "--anchor", head)
    assert code == 1
    assert "the log was truncated" in out


def test_show_lists_and_filters(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "--state", state)
    assert code == 0
    assert out.splitlines()[0].split()[:4] == ["SEQ", "TIME", "KIND", "POD"]
    assert len(out.splitlines()) == 7
    assert "\x1b" not in out
    code, out, _ = run(capsys, "show", "--state", state, "-n", "asr", "-o", "json")
    assert [record["seq"] for record in json.loads(out)] == [2, 4, 6]
    assert json.loads(run(capsys, "show", "--state", state, "--pod", "none", "-o", "json")[1]) == []


def test_show_says_when_lines_are_no_records(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with segments(state / "audit")[-1].open("ab") as file:
        file.write(b"rubbish\n")
    code, out, err = run(capsys, "show", "--state", state)
    assert code == 1
    assert len(out.splitlines()) == 7
    assert "1 lines are not records" in err


def test_a_single_segment_can_be_shown(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "show", "--log", segments(state / "audit")[0])[0] == 0


def test_where_there_is_no_log_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "verify", "--state", tmp_path)
    assert code == 2
    assert "no audit log in" in err


def test_an_empty_log_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "audit").mkdir()
    assert run(capsys, "verify", "--state", tmp_path)[0] == 0


@pytest.mark.parametrize("arguments", [["verify", "--anchor", "x"], ["show", "--since", "rumour"], ["forget"], []])
def test_wrong_use_is_2(state: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    place = ["--state", str(state)] if arguments and arguments[0] != "forget" else []
    assert run(capsys, *arguments, *place)[0] == 2


def _forged(*records: dict[str, object]) -> bytes:
    """A chain that holds, of records no enforcer writes: the hash has no key."""
    data, head = b"", GENESIS
    for number, fields in enumerate(records, start=1):
        record = {"seq": number, **fields, "prev": head.hash}
        head = ChainHead(number, digest_of(record))
        data += json.dumps({**record, "hash": head.hash}, separators=(",", ":")).encode() + b"\n"
    return data


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": 5, "time": "t"},
        {"kind": "WARNED"},
        {"kind": "WARNED", "time": "t", "pod": "\x1b[2J"},
        {"kind": "WARNED", "time": "t", "pod": {"name": ["\x1b[2J"], "namespace": 7}},
        {"kind": "WARNED", "time": "\x1b[2J", "targets": ["\x1b[2J", {"pid": "\x1b[2J"}], "usedMiB": "\x1b[2J"},
        {"kind": "\x1b[2J", "time": "t", "targets": 5, "gpu": ["\x1b[2J"], "result": {"\x1b[2J": 1}},
    ],
)
def test_records_no_enforcer_writes_neither_stop_nor_steer_the_reader(
    fields: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kills-000000000001.jsonl").write_bytes(_forged(fields))
    for words in (["show"], ["show", "-o", "json"], ["show", "--pod", "tts-0"], ["verify"]):
        code, out, err = run(capsys, *words, "--log", tmp_path)
        assert code in {0, 1}
        assert "\x1b" not in out + err


def test_names_of_files_do_not_steer_the_readers_terminal(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("kills-\x1b[2J.jsonl", "kills-\udcff.jsonl"):
        file = state / "audit" / name
        file.write_bytes(b"rubbish\n")
        code, out, err = run(capsys, "verify", "--state", state)
        assert code == 1
        assert "not valid JSON" in out
        file.unlink()
        file.mkdir()
        code, more, err = run(capsys, "show", "--state", state)
        assert code == 1
        assert "cannot be read" in err
        (out + more + err).encode()
        assert "\x1b" not in out + more + err
        file.rmdir()


def test_what_is_no_plain_file_is_not_waited_for(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trap = state / "audit" / "kills-000000000099.jsonl"
    for device in (None, "/dev/zero"):
        os.mkfifo(trap) if device is None else trap.symlink_to(device)
        for words in ("show", "verify"):
            code, _, err = run(capsys, words, "--state", state)
            assert code == 1
            assert "not a regular file" in err
        trap.unlink()


def test_a_line_without_end_is_not_read_into_memory(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = segments(state / "audit")[-1]
    count = len(last.read_bytes().splitlines())
    with last.open("r+b") as file:
        file.truncate(2**40)  # a hole: it takes no room on the disk
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**32, limits[1]))
    try:
        code, out, _ = run(capsys, "verify", "--state", state)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert code == 1
    assert f"{last.name}:{count + 1}: the line has more than 4096 bytes" in out
