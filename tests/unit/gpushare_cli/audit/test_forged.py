"""Audit logs somebody laid hands on, and logs written while they are read, as the command line tells of them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enforcer.audit.log import AuditLog, lines_of, segments
from enforcer.audit.record import Kind, head_of, read
from enforcer.audit.retention import Retention
from gpushare_cli.audit import log_reader
from tests.unit.gpushare_cli.audit_logs import run, write


def empty(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).touch()


def emptied_whole(folder: Path) -> None:
    *others, last = segments(folder)
    for file in others:
        file.unlink()
    last.write_bytes(b"")


def renamed(folder: Path) -> None:
    last = segments(folder)[-1]
    last.rename(last.with_name("kills-last.jsonl"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            empty("kills-000000000900.jsonl"),
            "kills-000000000900.jsonl is empty, and its name does not match the next record 13",
        ),
        (
            empty("kills-000000000000.jsonl"),
            "kills-000000000000.jsonl is empty, and its name does not match the next record 1",
        ),
        (
            empty("kills-copy.jsonl"),
            "kills-copy.jsonl is empty, and its name does not match the next record 13",
        ),
        (emptied_whole, "kills-000000000010.jsonl is empty, and its name does not match the next record 1"),
        (
            renamed,
            "kills-last.jsonl:1: starts with record 10, which does not match the file name",
        ),
    ],
)
def test_a_file_whose_name_is_not_that_of_what_comes_next_is_named(
    change: Callable[[Path], object], said: str, tmp_path: Path, capsys: Any
) -> None:
    write(tmp_path, 12)
    change(tmp_path / "audit")
    code, out, _ = run(capsys, "verify", "--state", tmp_path)
    assert (code, out.splitlines()[0].startswith(f"broken: {said}")) == (1, True), out


def test_a_segment_that_was_begun_and_holds_nothing_yet_is_no_forgery(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, 12)
    empty("kills-000000000013.jsonl")(tmp_path / "audit")
    assert run(capsys, "verify", "--state", tmp_path)[0] == 0


@pytest.mark.parametrize("name", ["gpu-7.jsonl", "kills-20261122.jsonl", "kills-of-gpu-7.jsonl", "export"])
def test_an_export_verifies_under_any_name(name: str, tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    copy = tmp_path / name
    copy.write_text(run(capsys, "export", "--state", tmp_path)[1])
    assert run(capsys, "verify", "--log", copy)[0] == 0
    copy.write_text(copy.read_text().replace("tts-1", "tts-2", 1))
    assert run(capsys, "verify", "--log", copy)[0] == 1


def waiting(monkeypatch: pytest.MonkeyPatch, *deeds: Callable[[], object]) -> list[float]:
    """Let these be done one after the other while a reader waits; returns how long it waited each time."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) <= len(deeds):
            deeds[len(waits) - 1]()

    monkeypatch.setattr(log_reader, "time", SimpleNamespace(sleep=sleep))
    return waits


@pytest.mark.parametrize("verb", ["verify", "show", "export"])
def test_a_line_that_is_being_written_is_waited_for(
    verb: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 12)
    last = segments(tmp_path / "audit")[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-400])
    waits = waiting(
        monkeypatch,
        lambda: last.write_bytes(whole[:-100]),
        lambda: last.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1]),
    )
    assert run(capsys, verb, "--state", tmp_path)[0] == 0, "taken back at last: it was no record"
    assert len(waits) == 2
    last.write_bytes(whole[:-400])
    waiting(monkeypatch, lambda: last.write_bytes(whole[:-100]), lambda: last.write_bytes(whole))
    code, out, _ = run(capsys, verb, "--state", tmp_path)
    assert code == 0
    assert {"verify": "12 records", "show": "\n12 ", "export": '"seq":12'}[verb] in out


def test_a_line_that_nobody_finishes_is_torn(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 12)
    last = segments(tmp_path / "audit")[-1]
    last.write_bytes(last.read_bytes()[:-400])
    assert 0 < log_reader.LOOKS < 100
    waits = waiting(monkeypatch)
    code, out, _ = run(capsys, "verify", "--state", tmp_path)
    assert (code, f"{last.name}:3: the line has no newline at its end: it is incomplete" in out) == (1, True)
    assert log_reader.LOOKS <= len(waits) <= log_reader.LOOKS + 1


@pytest.mark.parametrize("verb", ["verify", "show", "export"])
def test_segments_that_go_while_the_log_is_read_are_reported_to_have_gone(
    verb: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 12)
    first, second, *_ = segments(tmp_path / "audit")

    def pruned(path: Path, again: Callable[[], bool]) -> Any:
        yield from lines_of(path, again)
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)

    monkeypatch.setattr(log_reader, "lines_of", pruned)
    code, _, err = run(capsys, verb, "--state", tmp_path)
    assert (
        code,
        f"{second} was removed during the read, as the enforcer does with old segments; run the command again" in err,
    ) == (1, True)


@pytest.mark.parametrize("what", ["folder", "dangling link"])
def test_what_is_no_file_in_a_segments_place_means_that_not_all_was_read(
    what: str, tmp_path: Path, capsys: Any
) -> None:
    write(tmp_path, 12)
    trap = segments(tmp_path / "audit")[2]
    trap.unlink()
    trap.mkdir() if what == "folder" else trap.symlink_to("nowhere")
    for verb in ("verify", "show", "export"):
        code, _, err = run(capsys, verb, "--state", tmp_path)
        assert (code, re.fullmatch(rf"gpu-share: {trap} cannot be read: .*\n", err) is not None) == (1, True), err
    assert json.loads(run(capsys, "export", "--log", segments(tmp_path / "audit")[0])[1].splitlines()[0])["seq"] == 1


def test_a_folder_without_a_log_is_no_log_that_holds(tmp_path: Path, capsys: Any) -> None:
    for verb in ("verify", "show", "export"):
        code, out, err = run(capsys, verb, "--log", tmp_path)
        assert (code, out, f"--log {tmp_path} contains no file kills-*.jsonl" in err) == (2, "", True)
    (tmp_path / "audit").mkdir()
    code, out, _ = run(capsys, "verify", "--state", tmp_path)
    assert (code, out.splitlines()[-1]) == (
        0,
        "the log has no records: none was written yet, or all were removed. Verify with an anchor to know which",
    )


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (["--pod", "asr/tts-1"], [2]),
        (["--pod", "ml/tts-1"], [5]),
        (["--pod", "tts-1"], [2, 5]),
        (["--pod", "asr/tts-1", "-n", "asr"], [2]),
    ],
)
def test_a_pod_may_be_named_as_the_table_and_explain_name_it(
    words: list[str], numbers: list[int], tmp_path: Path, capsys: Any
) -> None:
    write(tmp_path)
    code, out, _ = run(capsys, "export", "--state", tmp_path, *words)
    assert (code, [json.loads(line)["seq"] for line in out.splitlines()]) == (0, numbers)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "--pod", "asr/tts-1", "-n", "ml"], "names namespace asr, but -n names ml"),
        (["show", "--kubeconfig", "x"], "add -A or remove --kubeconfig"),
        (["export", "--context", "x"], "add -A or remove --context"),
        (["show", "--enforcer-namespace", "x"], "add -A or remove --enforcer-namespace"),
        (["verify", "--context", "x"], "add -A or remove --context"),
        (["verify", "--anchor", "cluster", "--enforcer-namespace", "x"], "add -A or remove --enforcer-namespace"),
    ],
)
def test_an_option_that_would_be_of_no_effect_is_refused(
    words: list[str], said: str, tmp_path: Path, capsys: Any
) -> None:
    write(tmp_path)
    code, out, err = run(capsys, *words, "--state", tmp_path)
    assert (code, out, said in err) == (2, "", True), err


@pytest.mark.parametrize("pod", ["a/b/c", "/", "asr/", "/tts-1", ""])
def test_what_names_no_pod_is_refused(pod: str, tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    code, _, err = run(capsys, "show", "--pod", pod, "--state", tmp_path)
    assert (code, f"'{pod}' is not a pod; write POD or NAMESPACE/POD" in err) == (2, True), err


@pytest.mark.parametrize("words", [["show"], ["show", "-o", "json"], ["export"]])
def test_a_hole_in_a_log_is_notified_by_whatever_reads_it(words: list[str], tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, 12)
    assert run(capsys, *words, "--state", tmp_path)[0] == 0
    first, second, third, *_ = segments(tmp_path / "audit")
    second.unlink()
    code, _, err = run(capsys, *words, "--state", tmp_path)
    which = f"records {int(second.stem[6:])} to {int(third.stem[6:]) - 1} are missing"
    assert (code, err.count("missing"), which in err) == (1, 1, True), err
    first.unlink()
    assert run(capsys, *words, "--state", tmp_path)[0] == 0, "the oldest go first, as settings say"


def kept(folder: Path, node: str = "gpu-7") -> list[bytes]:
    """Write a log of which the oldest segments were removed; returns its lines."""
    with AuditLog(folder / "audit", segment_bytes=600, retention=Retention(segments=4)) as log:
        for number in range(40):
            log.append(Kind.WARNED, {"node": node, "n": number})
    return [line for file in segments(folder / "audit") for line in lines_of(file)]


def test_where_a_logs_beginning_is_in_doubt_both_places_are_named_as_files_have_them(
    tmp_path: Path, capsys: Any
) -> None:
    kept(tmp_path)
    first, *_ = files = segments(tmp_path / "audit")
    last = [file for file in files if b'"kind":"PRUNED"' in file.read_bytes()][-1]
    last.write_bytes(last.read_bytes().replace(b'"segments":', b'"segmentz":', 1))
    said = last.read_bytes().splitlines()
    line = next(number for number, each in enumerate(said, start=1) if b"segmentz" in each)
    code, out, _ = run(capsys, "verify", "--state", tmp_path)
    assert code == 1
    assert out.startswith(f"broken: {first.name}:1: records 1 to ")
    assert (
        f"; and {last.name}:{line}: `hash` of record {int(last.stem[6:]) + line - 1} is not the hash of its fields"
        in out
    )


def test_an_anchor_is_compared_with_what_the_first_record_follows(tmp_path: Path, capsys: Any) -> None:
    first, *_, last = map(read, kept(tmp_path))
    before = f"{first['seq'] - 1}:{first['prev']}"
    code, out, _ = run(capsys, "verify", "--state", tmp_path, "--anchor", before)
    assert (code, "1 anchor matches" in out) == (0, True), out
    false = f"{first['seq'] - 1}:sha256:{'ab' * 32}"
    for more in ([], ["--anchor", head_of(last)]):
        code, out, _ = run(capsys, "verify", "--state", tmp_path, "--anchor", false, *more)
        place = f"{segments(tmp_path / 'audit')[0].name}:1"
        said = f"broken: {place}: record {first['seq'] - 1} has another hash than the anchor"
        assert (code, out.startswith(said)) == (1, True), out
    older = f"{first['seq'] - 2}:sha256:{'ab' * 32}"
    assert "older than the log" in run(capsys, "verify", "--state", tmp_path, "--anchor", older)[1]


def test_a_record_that_is_not_the_anchors_is_named_by_its_place(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, 12)
    file = next(each for each in segments(tmp_path / "audit") if int(each.stem[6:]) > 1)
    code, out, _ = run(capsys, "verify", "--state", tmp_path, "--anchor", f"{int(file.stem[6:])}:sha256:{'ab' * 32}")
    assert (code, out.startswith(f"broken: {file.name}:1: record ")) == (1, True), out
