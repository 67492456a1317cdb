"""The kit's parts without a machine: results, what is found where, the folder of a run, a client that misbehaves."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.kit import cgroups, facts, find, registry, standins
from tests.gpu.kit.backend import Facts
from tests.gpu.kit.client import Client, ClientGoneError, ClientTimeoutError
from tests.gpu.kit.journal import MOST, Journal
from tests.gpu.kit.result import Result, Trouble, Verdict, fails, holds, judged, not_measured
from tests.gpu.kit.setup import Setup, reachable
from tests.gpu.kit.store import OtherMachineError, Store

DRIVER = "570.86.15"


def test_a_result_survives_the_journey_through_json() -> None:
    result = holds("it does", mib=3, table={"a": [1, 2]}).of("H1", "it does what it says", 1.5, [{"kind": "nvml"}])
    assert Result.from_json(result.to_json()) == result
    assert Result.from_json(not_measured("late", Trouble.TIMEOUT).to_json()).trouble is Trouble.TIMEOUT


def test_a_figure_json_cannot_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        holds("it does", share=float("nan")).to_json()


@pytest.mark.parametrize(
    "text", ['{"verdict": "maybe", "reason": ""}', '{"reason": "x"}', "[", '{"verdict":"holds","x":1}']
)
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Result.from_json(text)


def test_what_is_wrong_makes_a_hypothesis_fail() -> None:
    assert judged([], "all is well").verdict is Verdict.HOLDS
    assert judged(["a", "b"], "all is well") == fails("a; b")


def test_a_journal_stays_readable_however_much_is_asked() -> None:
    journal = Journal()
    for number in range(MOST + 5):
        journal.add("nvml", number, "x" * 100_000)
    entries = journal.entries()
    assert len(entries) == MOST + 1
    assert entries[-1] == {"kind": "left-out", "answered": 5}
    assert len(entries[0]["answered"]) < 30_000


def test_every_experiment_of_the_issue_is_there_once_and_the_core_comes_first() -> None:
    names = [each.name for each in registry.experiments()]
    wanted = {f"H{number}" for number in range(1, 15)}
    assert wanted <= set(names)
    assert len(set(names)) == len(names)
    groups = [each.group for each in registry.experiments()]
    assert groups == sorted(groups, key=lambda group: group != "core")
    assert names.index("H1") < names.index("H4") < names.index("H6"), "the one that disturbs the rest comes last"


def test_an_experiment_is_found_whatever_its_case_and_an_unknown_one_named() -> None:
    assert registry.named("h1").name == "H1"
    with pytest.raises(KeyError, match="H1, "):
        registry.named("h99")


def _program(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_bytes(content)
    file.chmod(0o755)
    return file


def test_mps_programs_are_found_beside_the_drivers_libraries(tmp_path: Path) -> None:
    library = _program(tmp_path / "nvidia" / "lib64", find.CUDA, b"")
    control = _program(tmp_path / "nvidia" / "bin", find.CONTROL, f"\0{DRIVER}\0".encode())
    server = _program(tmp_path / "nvidia" / "sbin", find.SERVER, b"no version in here")
    near = [each for each in find.program_folders([library]) if each.is_relative_to(tmp_path)]
    assert find.programs(DRIVER, near) == find.Programs(control=str(control), server=str(server))


@pytest.mark.parametrize("version", ["535.309.01", "570.86.16", "1570.86.15", ""])
def test_mps_programs_of_another_driver_are_never_used(tmp_path: Path, version: str) -> None:
    _program(tmp_path, find.CONTROL, f"\0{version}\0".encode())
    _program(tmp_path, find.SERVER, b"")
    found = find.programs(DRIVER, [tmp_path])
    assert not found.control
    assert f"the driver is {DRIVER}: never mixed" in found.problem


def test_a_server_that_names_another_version_is_refused_although_it_was_named(tmp_path: Path) -> None:
    control = _program(tmp_path, find.CONTROL, f"\0{DRIVER}\0".encode())
    server = _program(tmp_path / "other", find.SERVER, b"\x00535.309.01\x00")
    assert "535.309.01" in find.programs(DRIVER, [], str(control), str(server)).problem


def test_what_is_not_there_is_reported_with_where_it_was_looked_for(tmp_path: Path) -> None:
    assert str(tmp_path) in find.programs(DRIVER, [tmp_path]).problem
    _program(tmp_path, find.CONTROL, f"\0{DRIVER}\0".encode())
    assert find.SERVER in find.programs(DRIVER, [tmp_path]).problem


def test_the_loaded_drivers_version_is_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\n")
    assert find.loaded_driver(tmp_path / "version") == DRIVER
    assert find.loaded_driver(tmp_path / "none") == ""


@pytest.mark.parametrize(("file", "said"), [(".dockerenv", "Docker"), ("run/.containerenv", "Podman")])
def test_a_sandbox_is_recognised(tmp_path: Path, file: str, said: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    assert facts.sandbox(tmp_path, tmp_path) == said


def test_gvisor_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("Linux version 4.4.0 gVisor")
    assert facts.sandbox(tmp_path, tmp_path) == "gVisor"


def test_who_is_not_root_is_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert facts._checks(Setup(backend="real"), {})["root"]() == "not root but uid 1000"


def test_a_file_in_somebodys_home_is_not_reachable_for_others(tmp_path: Path) -> None:
    assert reachable(Path("/bin/sh"))
    assert not reachable(tmp_path / "missing")
    program = _program(tmp_path, "program", b"")
    tmp_path.chmod(0o700)
    assert not reachable(program)


def test_logging_is_replaced_only_where_it_is_not_installed() -> None:
    assert standins.ensure() == []
    assert standins.Log().bind(gpu="x").warning("said", pid=1) is None


SETUP = Setup(backend="real", gpu="GPU-1")
FACTS = Facts(driver=DRIVER, model="X")


def _store(folder: Path) -> Store:
    return Store(folder, folder / "out.tar.gz")


def test_results_of_another_machine_are_never_mixed_in(tmp_path: Path) -> None:
    store = _store(tmp_path)
    store.begin(SETUP, FACTS)
    store.put(holds("it does").of("H1", ""))
    with pytest.raises(OtherMachineError, match=r"driver .* and now"):
        store.begin(SETUP, Facts(driver="580.1.2"))
    store.begin(SETUP, FACTS)
    assert store.done("H1") is not None
    store.begin(SETUP, Facts(driver="580.1.2"), again=True)
    assert store.get("H1") is None


def test_what_was_not_measured_is_measured_again(tmp_path: Path) -> None:
    store = _store(tmp_path)
    store.begin(SETUP, FACTS)
    store.put(not_measured("no MPS").of("H2", ""))
    store.put(fails("it does not").of("H3", ""))
    assert store.done("H2") is None
    assert store.done("H3") is not None
    assert store.done("H4") is None


def test_a_torn_result_is_no_result(tmp_path: Path) -> None:
    store = _store(tmp_path)
    store.begin(SETUP, FACTS)
    (tmp_path / "results" / "H1.json").write_text('{"verdict": "ho')
    assert store.done("H1") is None
    assert store.collect()["results"] == []


PROGRAM = """
import sys, time, json
print(json.dumps({"ready": True, "pid": 1}), flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "quit": break
    if word == "hang": time.sleep(60)
    if word == "die": print("last words", file=sys.stderr); sys.exit(3)
    if word == "torn": sys.stdout.write("{"); sys.stdout.flush(); sys.exit(0)
    if word == "deaf":
        import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps({"echo": word}), flush=True)
"""


@pytest.fixture(name="client")
def _client(tmp_path: Path) -> Iterator[Client]:
    command = [sys.executable, "-S", "-c", PROGRAM]
    with Client(command, os.environ, tmp_path / "errors", Journal()) as client:
        client.ready()
        yield client


def test_a_client_answers_line_by_line(client: Client) -> None:
    client.send("one")
    client.send("two")
    assert [client.receive(), client.receive(), client.ask("three")] == [{"echo": w} for w in ("one", "two", "three")]


def test_a_client_that_does_not_answer_is_waited_for_no_longer_than_said(client: Client) -> None:
    begun = time.monotonic()
    with pytest.raises(ClientTimeoutError, match=r"'hang' within 0\.2 s"):
        client.ask("hang", 0.2)
    assert time.monotonic() - begun < 2
    client.process.kill()


@pytest.mark.parametrize(("command", "status"), [("die", 3), ("torn", 0)])
def test_a_client_that_ends_leaves_its_status_and_its_last_words(client: Client, command: str, status: int) -> None:
    with pytest.raises(ClientGoneError) as error:
        client.ask(command)
    assert error.value.status == status
    assert command != "die" or "last words" in str(error.value)
    with pytest.raises(ClientGoneError):
        client.ask("anything")


def test_closing_a_client_twice_and_after_its_end_does_no_harm(client: Client) -> None:
    client.kill()
    client.close()
    client.close()
    assert not client.alive


@pytest.mark.node
def test_what_was_started_is_ended_also_when_its_parent_is_gone() -> None:
    deaf = "import time, signal; signal.signal(15, 1); time.sleep(60)"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {deaf!r}], start_new_session=True)"
    script = (
        "import subprocess, sys, json; from tests.gpu.kit import cleaning\n"
        "cleaning.adopt_orphans(); cleaning.TERM_S = .3\n"
        f"subprocess.run([sys.executable, '-c', {orphan!r}])\n"
        "print(json.dumps([len(cleaning.end_all()), len(cleaning.descendants())]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [1, 0]


@pytest.mark.node
def test_what_was_there_before_is_neither_ended_nor_buried() -> None:
    script = (
        "import subprocess, time; from tests.gpu.kit import cleaning\n"
        "before, ended = subprocess.Popen(['sleep', '60']), subprocess.Popen(['sh', '-c', 'exit 7'])\n"
        "cleaning.adopt_orphans(); time.sleep(.2)\n"
        "mine = subprocess.Popen(['sleep', '60'])\n"
        "assert cleaning.end_all() == [mine.pid]\n"
        "print(before.poll(), ended.wait()); before.kill(); before.wait()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["None", "7"], done.stderr


@pytest.mark.node
def test_only_the_cgroups_that_were_made_are_removed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no cgroup file system"):
        cgroups.make(tmp_path, tmp_path / "list")
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "kubepods").mkdir()
    made = cgroups.make(tmp_path, tmp_path / "list")
    assert made.folder.is_dir()
    cgroups.remove(tmp_path / "list")
    assert {each.name for each in tmp_path.iterdir()} == {"cgroup.procs", "kubepods"}
    assert list((tmp_path / "kubepods").iterdir()) == []
