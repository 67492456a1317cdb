"""Lists that do not fit in memory: objects of 1.3 MB, which anybody may create, behind small ones.

A process that starts while they are there must read them within its limit of the chart. It was killed for memory again
and again, for as long as they existed.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.attack.large_objects import Crowd, LargeLists, claim, crowd, empty_variables, long_arguments, long_claim, pod
from tests.support.patience import patient
from tests.support.webhook import serving

PROJECT = Path(__file__).resolve().parents[2]
VALUES = PROJECT / "deploy/helm/gpu-share/values.yaml"
COMMAND_MIB = 256
"""What the hook that runs the command line has to live with, by our own choice: the chart sets no limit for it."""
LARGE = 130
STREAMS = (pytest.param(True, id="streamed", marks=pytest.mark.full), pytest.param(False, id="in pages"))
"""Real API servers stream: ``controlplane/test_large_objects.py`` is run beside large objects on these."""
LONG = pytest.param("long arguments", marks=pytest.mark.full)
TINY_FIELDS = 12
SECONDS = 120.0
FOLLOWING = """
import sys
import enforcer.main
from enforcer.quota.informer import QuotaInformer, add_informers
from enforcer.runtime.manager import Manager, Wake
from gpushare.kube_client import KubeClient
from tests.support.wiring import Ids, Quotas, Rule
manager, changed = Manager(), Wake()
books = QuotaInformer(Rule(lambda seen: ()), changed)
add_informers(manager, KubeClient.connect(sys.argv[1]), books, "gpu-7", Quotas(tuple), Ids({}), changed)
manager.start()
manager.stopped.wait()
"""


@cache
def crowds(name: str) -> Mapping[str, Crowd]:
    if name == "long arguments":
        return {"pods": crowd(pod(), long_arguments(), LARGE)}
    if name == "empty variables":
        return {"pods": crowd(pod(), empty_variables(), TINY_FIELDS)}
    large = crowd(claim(), long_claim(), LARGE)
    return {"resourceclaims": large, "resourceclaimtemplates": large}


def limit_mib(part: str) -> int:
    memory: str = yaml.safe_load(VALUES.read_text())[part]["resources"]["limits"]["memory"]
    found = re.fullmatch(r"([0-9]+)Mi", memory)
    assert found, memory
    return int(found[1])


def peak_mib(pids: Sequence[int]) -> float:
    """The most that these processes ever held, each at its own worst moment."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("VmHWM")]
    return sum(int(line.split()[1]) for line in lines) / 1024


@pytest.fixture(name="stack")
def _stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(stack: ExitStack, folder: Path, *command: str) -> subprocess.Popen[bytes]:
    log = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen([sys.executable, *command], cwd=PROJECT, stdout=log, stderr=log)
    stack.callback(process.wait, 30)
    stack.callback(process.kill)
    return process


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", [LONG, "empty variables"])
def test_an_enforcer_reads_large_pods_within_its_limit(
    tmp_path: Path, stack: ExitStack, name: str, *, streams: bool
) -> None:
    server = stack.enter_context(LargeLists(crowds(name), streams=streams).serving())
    process = started(stack, tmp_path, "-c", FOLLOWING, str(server.kubeconfig(tmp_path)))
    assert server.seen("pods").wait(patient(SECONDS)), (tmp_path / "log").read_text()
    found = peak_mib([process.pid])
    print(f"peak: {found:.0f} MiB")
    assert found < limit_mib("enforcer")


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", [LONG, "empty variables", "claims and templates"])
def test_a_webhook_starts_beside_large_objects_within_its_limit(
    tmp_path: Path, stack: ExitStack, name: str, *, streams: bool
) -> None:
    server = stack.enter_context(LargeLists(crowds(name), streams=streams).serving())
    options = ["--kubeconfig", str(server.kubeconfig(tmp_path))]
    running = stack.enter_context(serving(tmp_path, options=options, watching=True, patience=patient(SECONDS)))
    for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
        assert server.seen(kind).wait(patient(SECONDS)), running.log.read_text()[-2000:]
    found = peak_mib([running.process.pid, *running.worker_pids()])
    print(f"peak: {found:.0f} MiB")
    assert found < limit_mib("webhook")


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_uninstall_reads_large_claims_and_templates_within_256_mib(
    tmp_path: Path, stack: ExitStack, when: str, *, streams: bool
) -> None:
    server = stack.enter_context(LargeLists(crowds("claims and templates"), streams=streams).serving())
    options = ["--kubeconfig", str(server.kubeconfig(tmp_path)), "--timeout", "0"]
    process = started(stack, tmp_path, "-m", "gpushare_cli", "uninstall", when, *options)
    found, deadline = 0.0, time.monotonic() + patient(SECONDS)
    while process.poll() is None and time.monotonic() < deadline:
        found = max(found, _still(process.pid))
        time.sleep(0.02)
    assert process.returncode == 0, (tmp_path / "log").read_text()
    print(f"peak: {found:.0f} MiB")
    assert 0 < found < COMMAND_MIB


def _still(pid: int) -> float:
    """The same of a process that may end meanwhile; its last moment frees memory, and takes none."""
    try:
        return peak_mib([pid])
    except OSError:
        return 0.0
