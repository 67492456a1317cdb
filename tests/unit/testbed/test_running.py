"""Workers run beside each other, are told apart when they fail, and end together when they are told to."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.patience import holds_within
from tests.testbed.cluster import versions
from tests.testbed.parallel import clock
from tests.testbed.parallel.rounds import SUMMARY_WIDTH, ending, run
from tests.testbed.parallel.running import STOPPED, Running
from tests.testbed.parallel.workers import Session

ROOT = Path(__file__).parents[3]
NOTE = f"""
import json, os, pathlib, signal, sys, time
files = [pathlib.Path(name) for name in sys.argv[1:]]
def ran(*files):
    times = {{str(file): [1, 0.5] for file in files}}
    pathlib.Path(os.environ[{clock.VARIABLE!r}]).write_text(json.dumps(times))
"""
Make = Callable[..., Running]


def session(name: str, *files: Path) -> Session:
    return Session(name=name, files=tuple(map(str, files)))


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Make:
    """Workers whose sessions run a script instead of pytest."""

    def make(script: str, *workers: tuple[Session, ...]) -> Running:
        return Running(workers, tmp_path / "logs", 1.0, (sys.executable, "-c", NOTE + script))

    return make


def test_workers_run_beside_each_other(make: Make, tmp_path: Path) -> None:
    """Each waits for what the other writes."""
    meet = """
files[0].touch()
until = time.monotonic() + 20
while not all((files[0].parent / name).exists() for name in ("left", "right")):
    assert time.monotonic() < until
    time.sleep(0.01)
ran(*files)
"""
    workers = [(session(name, tmp_path / name),) for name in ("left", "right")]
    assert run(make(meet, *workers)) == 0


def test_a_session_runs_on_its_kubernetes(make: Make, tmp_path: Path) -> None:
    script = f"files[0].write_text(os.environ[{versions.VARIABLE!r}]); ran(*files)"
    older = Session(name="older", files=(str(tmp_path / "older"),), kubernetes=versions.OLDEST)
    assert run(make(script, (older, session("usual", tmp_path / "usual")))) == 0
    assert [(tmp_path / name).read_text() for name in ("older", "usual")] == [versions.OLDEST, versions.NEWEST]


def test_a_worker_that_fails_is_notified_with_its_end_and_the_others_go_on(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "print('::what went wrong'); ran(*files); files[0].touch(); sys.exit(files[0].name == 'bad')"
    bad, good, later = (session(name, tmp_path / name) for name in ("bad", "good", "later"))
    assert run(make(script, (bad, later), (good,))) == 1
    said = capsys.readouterr().out
    assert "FAILED: pytest ended with 1" in said
    assert said.count("what went wrong") == 1
    assert (tmp_path / "good").exists()
    assert (tmp_path / "later").exists()


def test_the_last_lines_name_every_test_that_failed(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those who read our output may have no more than its end, and a worker that went well may end last."""
    script = """
print("ERROR \\n" * 10 + f"FAILED {files[0].name}::test - " + "why " * 100)
ran(*files)
if files[0].name != "good":
    files[0].write_text(str(os.getpid()))
    sys.exit(1)
others = [files[0].with_name(name) for name in ("bad", "worse")]
until = time.monotonic() + 20
while not all(each.exists() and not pathlib.Path("/proc", each.read_text()).exists() for each in others):
    assert time.monotonic() < until
    time.sleep(0.01)
time.sleep(0.5)  # they are gone, and now it is said
"""
    workers = [(session(name, tmp_path / name),) for name in ("bad", "worse", "good")]
    assert run(make(script, *workers)) == 1
    *_, last = capsys.readouterr().out.partition("good           passed")
    told = last.splitlines()[2:]
    assert {line[:12] for line in told} == {"ERROR ", "FAILED bad::", "FAILED worse", "bad FAILED: ", "worse FAILED"}
    assert max(map(len, told)) == SUMMARY_WIDTH


FAILS = """
ran(*files)
here = files[0].parent
for file in files:
    with (here / f"{file.stem}.runs").open("a") as runs: runs.write("x")
    if (here / f"{file.stem}.runs").stat().st_size <= int(file.suffix[1:]): print(f"FAILED {file}::test"); code = 1
sys.exit(globals().get("code", 0))
"""
"""Each file fails as often as its name says."""


@pytest.mark.parametrize(
    ("files", "runs", "code", "said"),
    [
        (("a.1", "b.0"), (2, 1), 1, "FLAKY, passed by itself"),
        (("a.2", "b.0"), (2, 1), 1, "worker-again FAILED"),
        (("a.1", "b.1", "c.1"), (1, 1, 1), 1, "worker FAILED"),
        (("a.0", "b.0"), (1, 1), 0, "worker         passed"),
    ],
    ids=["passes then", "fails again", "too many", "none failed"],
)
def test_files_of_few_failures_run_once_more_by_themselves(
    make: Make, files: tuple[str, ...], runs: tuple[int, ...], code: int, said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(make(FAILS, (session("worker", *(tmp_path / name for name in files)),)), second_round=True) == code
    assert tuple(len((tmp_path / f"{name[0]}.runs").read_text()) for name in files) == runs
    out = capsys.readouterr().out
    assert said in out
    assert ("FLAKY" in out) == ("FLAKY" in said)


def test_who_does_not_ask_for_a_second_round_has_none(make: Make, tmp_path: Path) -> None:
    assert run(make(FAILS, (session("worker", tmp_path / "a.1"),))) == 1
    assert (tmp_path / "a.runs").read_text() == "x"


def test_a_session_that_crashed_is_not_run_again(make: Make, tmp_path: Path) -> None:
    script = FAILS.replace('sys.exit(globals().get("code", 0))', "sys.exit(3)")
    assert run(make(script, (session("worker", tmp_path / "a.1"),)), second_round=True) == 1
    assert (tmp_path / "a.runs").read_text() == "x"


@pytest.mark.parametrize("script", ["ran(files[0])", "pass"], ids=["one forgotten", "no times at all"])
def test_a_session_that_runs_nothing_of_a_file_has_failed(
    make: Make, script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(make(script, (session("worker", tmp_path / "seen", tmp_path / "unseen"),))) == 1
    assert "unseen was run" in capsys.readouterr().out


def test_asked_to_stop_each_session_is_interrupted_once_and_none_is_started(make: Make, tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts us in the background has it ignored
try:
    files[0].touch()
    signal.pause()
except KeyboardInterrupt:
    files[0].write_text("ended its cluster")
"""
    first, other, never = (tmp_path / name for name in ("first", "other", "never"))
    running = make(script, (session("first", first), session("never", never)), (session("other", other),))

    def stop() -> None:
        holds_within(lambda: first.exists() and other.exists(), 20, 0.05)
        running.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert run(running) == STOPPED
    stopper.join()
    assert (first.read_text(), other.read_text()) == ("ended its cluster", "ended its cluster")
    assert not never.exists()


def test_progress_is_a_line_for_each_session_under_way(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """
print("tests/test_a.py::test_one PASSED", flush=True)
until = time.monotonic() + 20
while not files[0].exists() and time.monotonic() < until:
    time.sleep(0.01)
ran(*files)
"""
    running = make(script, (session("worker", tmp_path / "go"),))
    said: list[str] = []

    def watch() -> None:
        holds_within(lambda: "test_one PASSED" in "".join(running.progress()), 20, 0.05)
        said.extend(running.progress())
        (tmp_path / "go").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert run(running, 0.1) == 0
    watcher.join()
    assert said == ["worker         tests/test_a.py::test_one PASSED"]
    assert "  0:0" in capsys.readouterr().out


def test_the_end_of_a_log_is_what_failed_and_not_what_passed() -> None:
    lines = ["a::b PASSED", "=== FAILURES ===", "why", "=== PASSES ===", "figures", "=== short ===", "FAILED a::c", "x"]
    assert ending(lines) == [*lines[:3], "=== PASSES ===", "=== short ===", "FAILED a::c"]


TIMED = """
import pytest
from tests.support.patience import FACTOR
@pytest.mark.timeout(100)
def test_marked(request):
    assert request.node.get_closest_marker("timeout").args == (300.0,)
def test_unmarked(request):
    assert (FACTOR, request.node.get_closest_marker("timeout").args) == (3.0, (60.0,))
@pytest.mark.skip
def test_skipped(): ...
"""


def test_pytest_is_patient_and_counts_what_it_ran(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TIMED)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 20\nmarkers = timeout\n")
    times = tmp_path / "times.json"
    env = {**os.environ, clock.VARIABLE: str(times), "GPU_SHARE_PATIENCE": "3", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", clock.__name__, "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran, seconds = json.loads(times.read_text())["test_it.py"]
    assert (ran, seconds < 60) == (3, True)


def test_a_signal_to_the_command_itself_ends_it(tmp_path: Path) -> None:
    """SIGTERM reaches workers that ignore nothing: the command ends with its own code, having cleaned up."""
    script = f"""
import signal, sys
from pathlib import Path
from tests.testbed.parallel import __main__ as command
from tests.testbed.parallel.running import Running
class Waits(Running):
    def __init__(self, workers, folder, factor, head_start):
        words = (sys.executable, "-c", "import signal; print('::waits', flush=True); signal.pause()")
        super().__init__(workers, folder, factor, words)
command.Running, command.FOLDER = Waits, Path({str(tmp_path)!r})
command.images.targets = list
sys.exit(command.main(["tests/e2e/test_mps.py", "tests/e2e/test_kill.py"]))
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        logs = [tmp_path / f"{name}.log" for name in ("node-1", "node-2")]
        assert holds_within(lambda: all(log.exists() and "::waits" in log.read_text() for log in logs), 30)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == STOPPED
    assert "stopping" in said
    assert all("KeyboardInterrupt" in log.read_text() for log in logs)
