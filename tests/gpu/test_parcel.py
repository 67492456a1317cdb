"""The parcel's own parts: unpacking, ending whatever a killed run has started, and the programs for real GPUs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.programs import CLIENT, GpuHost, host
from tests.gpu.parcel import container_spec, layout, make, node_settings, results, tenants, unpack, worker
from tests.gpu.parcel.cases import CASES, Case, chosen
from tests.gpu.parcel.holding import STATE, Holding
from tests.support.need import missing
from tests.support.patience import holds_within
from tests.testbed.cluster import cgroups
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.processes import start_time

REAL = tenants.Programs(simulated=False)
TAKE = """
import subprocess, sys, time
from pathlib import Path
from tests.gpu.parcel.holding import Holding
from tests.testbed.cluster import cgroups
held = Holding.take(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
for file in cgroups.procs_files(held.cgroup, cgroups.hierarchies()):
    file.write_text(str(child.pid))
print(held.folder, held.cgroup, child.pid, flush=True)
time.sleep(600)
"""


def packed(folder: Path, python: str) -> Path:
    source = folder / "source"
    for name in (f"{layout.BINARIES}/kubernetes", f"{layout.BINARIES}/runc", f"{layout.SITE}/mine.py", "simulated/lib"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"# {name}\n")
    (source / layout.BINARIES / "kubelet").symlink_to("kubernetes")
    made = folder / "made"
    made.mkdir()
    for number, part in enumerate(layout.PARTS):
        content = {"id": "abc", "python": python}
        make._pack(source, made / part, content, first=number == 0, preset=0)
    return made


def test_parts_come_one_after_the_other_and_are_whole_together(tmp_path: Path) -> None:
    made, home = packed(tmp_path, layout.python_tag()), tmp_path / "home"
    later = tmp_path / layout.PARTS[1]
    (made / layout.PARTS[1]).rename(later)
    with pytest.raises(unpack.UnusableParcelError, match=r"parcel-1\.tar has come of parcel-1\.tar, parcel-2\.tar"):
        unpack.unpack(made, home)
    (made / layout.PARTS[0]).unlink()
    later.rename(made / layout.PARTS[1])
    folder = unpack.unpack(made, home)
    assert (folder / layout.BINARIES / "kubernetes").read_text() == "# bin/kubernetes\n"
    assert (folder / layout.SITE / "mine.py").is_file()
    (made / layout.PARTS[1]).unlink()
    assert unpack.unpack(made, home) == folder, "what was unpacked is there for the next run"


def test_a_parcel_for_another_python_is_refused(tmp_path: Path) -> None:
    made = packed(tmp_path, "3.9")
    with pytest.raises(unpack.UnusableParcelError, match=rf"for Python 3\.9, this is {layout.python_tag()}"):
        unpack.unpack(made, tmp_path / "home")


@pytest.mark.node
def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing("control groups need root")
    try:
        mounted = cgroups.hierarchies()
    except BedError as error:
        missing(str(error))
    with subprocess.Popen([sys.executable, "-c", TAKE, str(tmp_path)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, cgroup, pid = run.stdout.readline().split()
        assert json.loads((Path(folder) / STATE).read_text())["owner"] == run.pid
        assert cgroups.pids(cgroup, mounted) == {int(pid)}
        run.send_signal(signal.SIGKILL)
    assert holds_within(lambda: not Path(folder).exists(), 20)
    assert not [each for each in mounted if (each.where / cgroup).exists()]
    assert start_time(int(pid)) is None


def test_a_run_whose_guardian_was_killed_too_is_ended_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    folder.mkdir()
    state = {"cgroup": "gpu-share-parcel-test", "owner": 1, "started": 0, "controllers": "", "sysctls": {}, "made": []}
    (folder / STATE).write_text(json.dumps(state))
    assert not Holding.load(folder).alive


@pytest.fixture(name="here")
def _here(monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuHost]:
    monkeypatch.setattr(tenants, "CLIENT", str(CLIENT))
    with host(need_library()) as made:
        yield made


def run(here: GpuHost, script: str, seconds: float, limit: str = "4096") -> list[dict[str, Any]]:
    """What a script of a container prints until its time is up; it ends by SIGTERM at once."""
    env = {
        "PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(here.daemon()),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}M", "CUDA_VISIBLE_DEVICES": here.gpus[0],
        **here.sim.environment(need_library()),
    }  # fmt: skip
    command = ["sh", "-c", script]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        time.sleep(seconds)
        held = sum(row.memory_mib or 0 for rows in here.sim.processes().values() for row in rows if row.kind == "mps")
        running.terminate()
        assert holds_within(lambda: running.poll() is not None, 5)
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        text = running.communicate()[0]
    return [*(json.loads(line) for line in text.splitlines() if line.startswith("{")), {"held": held}]


@pytest.mark.node
def test_programs_for_real_gpus_do_what_their_cases_wait_for(here: GpuHost) -> None:
    assert run(here, REAL.several(2, 1500), 2.0)[-1]["held"] == 2 * 1800, "each with its context"


@pytest.mark.node
def test_a_program_that_computes_says_so_again_and_again(here: GpuHost) -> None:
    lines = run(here, REAL.compute(512, side=64), 3.0)
    assert sum(each.get("ok") is True for each in lines) >= 2


@pytest.mark.node
def test_a_program_that_fills_its_share_is_refused(here: GpuHost) -> None:
    filled = next(each for each in run(here, tenants.client("fill 128", "quit"), 2.0) if "steps" in each)
    assert (filled["refused_name"], filled["mib"]) == ("CUDA_ERROR_OUT_OF_MEMORY", 3712)


def test_no_place_is_mounted_inside_another() -> None:
    places = list(container_spec._places())
    assert Path("/usr") in places
    assert not [(a, b) for a in places for b in places if a != b and a.is_relative_to(b)]


@pytest.mark.parametrize("identity", ["00ff", "d3a8b1", "7a" * 32])
def test_each_pod_gets_an_address_from_the_network_that_is_none(identity: str, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(node_settings.NO_NETWORK)
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": identity, "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/x"}
    said = json.loads(subprocess.run(["sh", str(plugin)], env=env, capture_output=True, text=True, check=True).stdout)
    first, second = int(identity[:2], 16), int(identity[2:4], 16)
    assert said["ips"] == [{"interface": 0, "address": f"10.1.{first}.{second}/32"}]


def test_cases_are_chosen_by_number_and_name() -> None:
    assert [each.number for each in chosen("1,several-processes")] == [1, 3]
    assert len(chosen("")) == len(CASES) == 10
    with pytest.raises(ValueError, match="no case nonsense; there are first-share"):
        chosen("nonsense")


def test_logs_stay_when_their_pods_go(tmp_path: Path) -> None:
    store = results.Store(tmp_path / "out", tmp_path / "out.tar.gz")
    store.begin("fake")
    log = tmp_path / "run/node/var/log/pods/system_enforcer_1/enforcer/0.log"
    log.parent.mkdir(parents=True)
    log.write_text("started\n")
    store.take_logs(tmp_path / "run")
    log.write_text("started\nfailed\n")
    os.utime(log, (1, 1))
    store.take_logs(tmp_path / "run")
    log.unlink()
    store.take_logs(tmp_path / "run")
    assert (store.folder / "logs/system-enforcer-1-enforcer-0.log").read_text() == "started\nfailed\n"


def test_all_ends_with_a_case_that_every_other_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def case(number: int) -> Case:
        def run(_: object) -> str:
            tried.append(number)
            raise AssertionError("it did not work")

        return Case(number, f"case-{number}", 30, run, needed=number == 2)

    monkeypatch.setattr(worker, "chosen", lambda _: [case(1), case(2), case(3)])
    monkeypatch.setattr(worker, "_start", lambda *_: SimpleNamespace(figures={}))
    monkeypatch.setattr(worker, "STATE", ("echo seen",))
    store = results.Store(tmp_path / "out", tmp_path / "out.tar.gz")
    store.begin("fake")
    folders = [f"--parcel={tmp_path}", f"--run={tmp_path}", f"--out={store.folder}", f"--tar={store.tar}"]
    assert worker.main([*folders, "--backend=fake", "--budget=100"]) == 1
    assert tried == [1, 2]
    for number in tried:
        assert "seen" in (store.folder / f"logs/state-after-case-{number}.txt").read_text()
