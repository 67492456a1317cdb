import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.demo.cgroups import Cgroups
from tests.demo.children import ROOT, Children, uninterrupted
from tests.support.patience import holds_within

pytestmark = [pytest.mark.node, pytest.mark.xdist_group("demo")]


IN_THE_BACKGROUND = ["/bin/sh", "-c", 'trap "" INT; exec "$0" "$@"']
"""As a shell starts a job with ``&``: deaf to Ctrl-C, which the program has to change by itself."""


def demo(folder: Path, *options: str, started_by: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*started_by, sys.executable, "-m", "tests.demo", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(folder: Path) -> list[str]:
    """Every process that was started with this folder in its arguments or its environment."""
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and any(_mentions(entry, folder))]


def _mentions(process: Path, folder: Path) -> Iterator[bool]:
    for name in ("cmdline", "environ"):
        try:
            yield str(folder).encode() in (process / name).read_bytes()
        except OSError:
            continue


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # What was killed with its leader is gone a moment later than that.
    assert holds_within(lambda: processes_of(tmp_path) == [], 20), processes_of(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_everything_it_shows_happens(folder: Path) -> None:
    out, _ = demo(folder).communicate(timeout=60)
    lines = out.splitlines()
    last = lines.pop()
    assert (ROOT / last.partition("browser: ")[2].partition(". ")[0]).is_file()
    assert lines[-1].startswith("All of this happened, in ")
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 150
    for expected in (
        "WARNED",
        "INTENT",
        "OUTCOME  Killed",
        "still holds its 3072 MiB",
        "audit verify: ok",
        "was edited",
    ):
        assert expected in out
    assert "\x1b" not in out
    recorded = (ROOT / "docs" / "demo.txt").read_text()
    assert shape(recorded) == shape("\n".join(lines)), (
        "docs/demo.txt shows another run: make demo ARGS=--write puts a new one there"
    )


def shape(run: str) -> list[str]:
    """What is the same in every run, on every machine that has a compiler and control groups or not."""
    lines = [line for line in run.splitlines() if not line.lstrip().startswith(("GPU:", "containers:"))]
    return [" ".join(re.sub(r"SIG[A-Z]+", "SIGNAL", re.sub(r"\d+", "0", line)).split()) for line in lines]


def test_it_needs_neither_a_compiler_nor_control_groups(folder: Path) -> None:
    program = (
        "import sys; from tests.demo import __main__ as demo, cgroups;"
        "cgroups.MOUNTS = cgroups.Path('/dev/null'); sys.exit(demo.main([]))"
    )
    environment = {**os.environ, "TMPDIR": str(folder), "PATH": "/nowhere", "CC": ""}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a Python reader stands in for NVML" in done.stdout
    assert "a list of pids stands in for them" in done.stdout


def test_without_the_enforcer_it_fails(folder: Path) -> None:
    process = demo(folder, "--without-enforcer")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the demo failed in step 4: a WARNED record about notebook" in out
    assert "All of this happened" not in out


@pytest.mark.parametrize("started_by", [(), IN_THE_BACKGROUND], ids=["terminal", "background"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(folder: Path, number: signal.Signals, started_by: Sequence[str]) -> None:
    process = demo(folder, started_by=started_by)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("3."):
            break
    time.sleep(0.5)
    process.send_signal(number)
    rest = process.communicate(timeout=30)
    assert process.returncode == 130, rest


def test_an_interruption_while_a_process_starts_comes_when_it_is_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children, usual = Children(folder), subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGINT)
        return usual(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        children.start("sleeper", ["sleep", "600"], {"TMPDIR": str(folder)})
    assert [child.alive for child in children.started] == [True]
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        children.stop()
    assert children.started == []
    (folder / "sleeper.log").unlink()


def test_control_groups_of_a_kubelet_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubepods").mkdir()
    monkeypatch.setattr("tests.demo.cgroups.hierarchies", lambda: [tmp_path])
    assert Cgroups.available() is None
