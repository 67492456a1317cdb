import json
import os
import re
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit.log import FOLDER, AuditLog
from enforcer.audit.record import Kind
from enforcer.status.node_status import NAME
from gpushare_cli import node_status
from gpushare_cli.main import main

GPU = "GPU-a1000000-0000-4000-8000-000000000000"


def container(pod: str, used: int | None, state: str, *pids: int) -> dict[str, Any]:
    return {
        "namespace": "asr",
        "pod": pod,
        "container": "model",
        "gpu": GPU,
        "quotaMib": 4096,
        "usedMib": used,
        "state": state,
        "sentence": f"{pod} is {state}",
        "processes": [{"pid": pid, "usedMib": 1} for pid in pids],
    }


def status(*containers: dict[str, Any], age: float = 0, **more: Any) -> dict[str, Any]:
    written = (node_status.now() - timedelta(seconds=age)).isoformat().replace("+00:00", "Z")
    gpu = {"uuid": GPU, "index": 0, "model": "NVIDIA A100", "memoryMib": 16384, "reservedMib": 512, "usedMib": 9216}
    gpu |= {"mode": "time-slicing"}
    stranger = {"gpu": GPU, "pid": 9, "usedMib": 5}
    whole = {"version": 1, "time": written, "node": "n", "enforcing": True, "problems": [], "gpus": [gpu]}
    return {**whole, "containers": list(containers), "strangers": [stranger], **more}


@pytest.fixture(name="state")
def _state(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_text(
        json.dumps(
            status(
                container("tts", 3072, "Within", 7, 8),
                container("near", 4000, "Within", 9),
                container("big", 9216, "Warned", 10),
                container("gone", 0, "CoolingDown"),
                container("odd", None, "Unknown"),
            )
        )
    )
    return tmp_path


def test_gpus_and_containers_are_tables_without_blanks(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--state", str(state)]) == 0
    lines = [re.sub(" +", " ", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "GPU MODEL MODE MEM-USED/LIMIT/TOTAL CLIENTS",
        "0 NVIDIA A100 time-slicing 9216/20480/15872 5",
        "",
        "GPU NAMESPACE/POD CONTAINER PID MEM/QUOTA STATE",
        "0 asr/big model 10 9216/4096 over",
        "0 asr/gone model N/A 0/4096 killed",
        "0 asr/near model 9 4000/4096 near",
        "0 asr/odd model N/A N/A/4096 blind",
        "0 asr/tts model 7,8 3072/4096 ok",
        "GPU memory in MiB",
    ]


def test_a_quota_that_is_not_what_was_reserved_is_shown_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = container("tts", 1024, "Within", 7) | {"reservedMib": 8192}
    (tmp_path / NAME).write_text(json.dumps(status(mine)))
    assert main(["top", "--state", str(tmp_path)]) == 0
    assert "1024/4096 of 8192" in capsys.readouterr().out
    assert main(["explain", "asr/tts", "--state", str(tmp_path)]) == 0
    assert "uses 1Gi of its quota of 4Gi (8Gi reserved) on GPU 0" in capsys.readouterr().out


def test_borrowed_memory_has_a_column_where_somebody_may_borrow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    borrower = {**container("tts", 9216, "Within", 7), "limitMib": 12_288, "borrowedMib": 5120}
    (tmp_path / NAME).write_text(json.dumps(status(borrower, container("llm", 100, "Within", 8))))
    assert main(["top", "--state", str(tmp_path)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "GPU NAMESPACE/POD CONTAINER PID MEM/QUOTA BORROWED STATE" in lines
    assert any(line.endswith("9216/4096 5120 ok") for line in lines)


def test_states_are_coloured(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--state", str(state), "--color", "always"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[32mok\x1b[0m" in out
    assert "\x1b[31mover\x1b[0m" in out


def test_json_is_what_the_enforcer_wrote(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--state", str(state), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((state / NAME).read_text())


def test_an_old_status_is_reported_to_be_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / NAME).write_text(json.dumps(status(age=60)))
    assert main(["top", "--state", str(tmp_path)]) == 1
    assert "60 s old: the enforcer does not run" in capsys.readouterr().err


def test_what_an_enforcer_said_that_does_not_run_is_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for age, code in ((0, 0), (60, 1)):
        (tmp_path / NAME).write_text(json.dumps(status(container("tts", 1, "Within"), age=age)))
        assert main(["explain", "tts", "--state", str(tmp_path)]) == code
        out, err = capsys.readouterr()
        assert "ok: tts is Within" in out
        assert ("60 s old: the enforcer does not run" in err) == (code == 1)


@pytest.mark.parametrize("what", ["pipe", "folder", "endless"])
@pytest.mark.parametrize("line", [["top"], ["explain", "tts"]])
def test_what_is_no_plain_file_is_neither_waited_for_nor_read_whole(
    what: str, line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / NAME
    if what == "pipe":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    else:
        file.touch()
        os.truncate(file, 2**40)  # a hole: it takes no room on the disk
    assert main([*line, "--state", str(tmp_path)]) == (1 if what == "endless" else 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_nor_is_the_audit_log(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / FOLDER).mkdir()
    log = state / FOLDER / "kills-000000000001.jsonl"
    os.mkfifo(log)
    assert main(["top", "--state", str(state)]) == 0
    log.unlink()
    log.write_text("[" * 100_000 + "\n")
    assert main(["top", "--state", str(state)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("text", "code"), [(None, 2), ("", 1), ("[]", 1), ("{", 1), ("[" * 100_000, 1)])
def test_no_status_is_a_sentence(
    text: str | None, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / NAME).write_text(text)
    assert main(["top", "--state", str(tmp_path)]) == code
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("raw", [{"gpus": 1}, {"gpus": [1, {"index": True}], "containers": [{"processes": {}}, 3]}, {}])
def test_a_status_of_another_shape_is_shown_as_not_available(raw: Any, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(raw))
    assert main(["top", "--state", str(tmp_path)]) == 1


def test_names_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / NAME).write_text(json.dumps(status(container("a\x1b[2J", 1, "ok\x07"))))
    assert main(["top", "--state", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pod", "code", "says"),
    [
        ("asr/tts", 0, "uses 3Gi of its quota of 4Gi on GPU 0 (NVIDIA A100"),
        ("tts", 0, "ok: tts is Within"),
        ("near", 0, "processes: 1, the largest first: pid 9 1Mi"),
        ("big", 1, "over: big is Warned"),
        ("gone", 1, "killed: "),
        ("other/tts", 1, "does not know this pod; it knows: asr/tts, asr/near"),
    ],
)
def test_a_pod_of_this_node_is_explained(
    pod: str, code: int, says: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", pod, "--state", str(state)]) == code
    assert says in capsys.readouterr().out


def test_processes_are_counted_and_named_with_what_they_hold_the_largest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [{"pid": pid, "usedMib": pid} for pid in range(1, 23)] + [{"pid": 99}, {"usedMib": 5}]
    (tmp_path / NAME).write_text(json.dumps(status(container("tts", 253, "Within") | {"processes": many})))
    assert main(["explain", "tts", "--state", str(tmp_path)]) == 0
    (line,) = [line.strip() for line in capsys.readouterr().out.splitlines() if "processes" in line]
    assert line.startswith("processes: 23, the largest first: pid 22 22Mi, pid 21 21Mi, ")
    assert line.endswith("pid 3 3Mi and 3 more")


def test_memory_that_nobody_is_counted_for_is_shown_above_the_tolerance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = status(container("tts", 3072, "Within", 7))
    shown = {}
    for mib in (512, 3072):
        whole["gpus"][0]["unaccountedMib"] = mib
        (tmp_path / NAME).write_text(json.dumps(whole))
        assert main(["explain", "tts", "--state", str(tmp_path)]) == 0, "it is no state of the container"
        explained = capsys.readouterr().out
        main(["top", "--state", str(tmp_path)])
        shown[mib] = (
            "\n  GPU 0: 3Gi of its memory are in use and counted for nobody\n" in explained,
            capsys.readouterr().out,
        )
    assert [found for found, _ in shown.values()] == [False, True]
    assert "UNACCOUNTED" not in shown[512][1]
    assert "3072" in shown[3072][1].splitlines()[1]


@pytest.mark.parametrize("words", [["asr/joiner"], ["joiner"], ["joiner", "-n", "asr"]])
def test_one_that_was_given_nothing_is_notified_what_the_enforcer_says_of_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [
        "claim asr/c was prepared for pod asr/first; pod asr/joiner uses it too and gets nothing of it",
        "claim asr/d was prepared for pod asr/second; pod asr/joiner-2 uses it too and gets nothing of it",
    ]
    (tmp_path / NAME).write_text(json.dumps(status(problems=problems)))
    assert main(["explain", *words, "--state", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [f"  {problems[0]}"]


@pytest.mark.parametrize("line", [[], ["a", "-f", "b"]])
def test_explain_wants_a_pod_or_a_manifest(line: list[str]) -> None:
    assert main(["explain", *line]) == 2


def test_what_hinders_the_enforcer_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blind = {"uuid": GPU, "index": 0, "model": "A", "blind": "NVML does not answer"}
    raw = status(gpus=[blind], problems=["the disk is full"], enforcing=False)
    (tmp_path / NAME).write_text(json.dumps(raw))
    assert main(["top", "--state", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for sentence in (
        "N/A/0/N/A",
        "cannot be read: NVML does not answer",
        "problem: the disk is full",
        "enforcement is off",
    ):
        assert sentence in out


def test_a_container_that_was_ended_is_shown_as_killed_while_it_holds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {**container("big", 0, "Within"), "containerId": "c1"}
    restarted = {**container("big", 0, "Within"), "containerId": "c2"}
    (tmp_path / NAME).write_text(json.dumps(status(ended, restarted)))
    with closing(AuditLog(tmp_path / FOLDER)) as log:
        log.open()
        targets = [{"pid": 7, "steps": "SIGTERM,with 3"}]
        log.append(Kind.OUTCOME, {"containerId": "c1", "result": "Killed", "targets": targets})
    assert main(["top", "--state", str(tmp_path)]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[4:-1]] == ["killed", "ok"]
    assert main(["explain", "big", "--state", str(tmp_path)]) == 1
    assert ": process 7 (SIGTERM, then ended with process 3); record 1 of the audit log" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", ["0", "-1", "0.09", "nan", "inf", "1e9", "", "fast"])
def test_an_interval_in_which_nothing_new_can_come_is_refused(
    state: Path, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--state", str(state), "--watch", f"--interval={seconds}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--interval" in err


def test_rows_are_sorted_and_stay_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = {"uuid": "GPU-b", "index": 10, "model": "NVIDIA A100", "mode": "mps"}
    mine = [container(f"pod-{number}", 1, "Within") for number in (10, 9, 1)]
    there = container("other", 1, "Within") | {"gpu": "GPU-b"}
    first = status()["gpus"][0] | {"index": 2}
    (tmp_path / NAME).write_text(json.dumps(status(*mine, there, gpus=[second, first])))
    assert main(["top", "--state", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[1:3]] == ["2", "10"]
    assert [line[1] for line in lines[5:-1]] == ["asr/pod-1", "asr/pod-10", "asr/pod-9", "asr/other"]
