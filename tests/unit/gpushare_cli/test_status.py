"""``gpu-share status``, as it runs in the sidecar of a sharing pod."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpushare_cli import node_status
from gpushare_cli.main import main
from sidecar.pod_status import FILE

GPU = "GPU-a1000000-0000-4000-8000-000000000000"
LATE = "2026-11-20T22:16:05Z"


def use(container: str, used: int | None, state: str = "Within", peak: int | None = None) -> dict[str, Any]:
    amounts = {"usedMiB": used, "peakMiB": peak, "quotaMiB": 4096}
    return {"container": container, "gpu": GPU, "state": state} | amounts


def written(folder: Path, *containers: dict[str, Any], age: float = 0.0, **more: Any) -> None:
    time = (node_status.now() - timedelta(seconds=age)).isoformat()
    whole = {"version": 1, "time": time, "ready": True, "waiting": "", "containers": containers, "messages": []}
    (folder / FILE).write_text(json.dumps(whole | more))


def status(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], str]:
    code = main(["status", "--status", str(folder)])
    out, err = capsys.readouterr()
    return code, [" ".join(line.split()) for line in out.splitlines()], err


def test_the_containers_of_the_pod_are_shown_sorted_with_use_and_quota(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(
        tmp_path,
        use("tts", 3072, peak=3400),
        use("big", 9216, "Warned", 9216),
        use("near", 4000),
        use("odd", None, "Unknown"),
    )
    code, lines, err = status(tmp_path, capsys)
    assert (code, err) == (0, "")
    assert lines == [
        "CONTAINER GPU MEM/QUOTA PEAK STATE",
        f"big {GPU} 9216/4096 9216 over",
        f"near {GPU} 4000/4096 N/A near",
        f"odd {GPU} N/A/4096 N/A blind",
        f"tts {GPU} 3072/4096 3400 ok",
    ]


def test_json_is_what_the_enforcer_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, use("tts", 3072, peak=3400), messages=[{"time": LATE, "text": "OverQuota: a\x1b[2Jb"}])
    assert main(["status", "--status", str(tmp_path), "-o", "json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == json.loads((tmp_path / FILE).read_text())
    assert all(line.isprintable() for line in out.splitlines())


def test_messages_of_the_enforcer_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, use("tts", 1), messages=[{"time": LATE, "text": "OverQuota: a\x1b[2Jb"}])
    code, lines, _ = status(tmp_path, capsys)
    assert (code, lines[-1]) == (0, f"{LATE} OverQuota: a\\x1b[2Jb")


def test_a_share_that_is_not_ready_is_exit_code_1_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, ready=False, waiting="the MPS daemon starts")
    code, lines, _ = status(tmp_path, capsys)
    assert code == 1
    assert "the MPS daemon starts" in lines[0]


def test_an_old_status_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, use("tts", 1), age=90)
    code, lines, err = status(tmp_path, capsys)
    assert (code, len(lines)) == (1, 2)
    assert "90 s" in err


@pytest.mark.parametrize("content", [None, "", "[]", "{"])
def test_elsewhere_than_in_a_sidecar_it_says_where_to_run_it(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / FILE).write_text(content)
    code, lines, err = status(tmp_path, capsys)
    assert (code, lines, err.count("\n")) == (1, [], 1)
    assert "kubectl exec" in err
