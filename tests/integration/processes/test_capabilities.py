"""The capabilities that the chart gives an unprivileged enforcer: its work needs each of them, and no more."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.integration.controlplane import manifests
from tests.support.need import missing

pytestmark = pytest.mark.node
TEMPLATE = manifests.FILE.parents[1] / "helm" / "gpu-share" / "templates" / "enforcer.yaml"
NOBODY = "65534"
LOOK = """
import sys
from enforcer.attribution.procfs import CgroupAttributor
identity = CgroupAttributor().identify(int(sys.argv[1]))
sys.exit(identity is None)
"""
SAID = """
import sys
from pathlib import Path
from enforcer.attribution.procfs import read_stat
from enforcer.limits.process_environ import EnvironReader
stat = read_stat(Path(f"/proc/{sys.argv[1]}/stat"))
sys.exit(EnvironReader().limit_of(int(sys.argv[1]), stat.start) is None)
"""
END = """
import signal, sys
from enforcer.attribution.procfs import PidHandle
with PidHandle.open(int(sys.argv[1])) as handle:
    sys.exit(not (handle.send(signal.SIGKILL) and handle.ended(5)))
"""


def granted() -> set[str]:
    """What the template adds to nothing."""
    lines = (
        TEMPLATE.read_text().partition("capabilities:\n              drop: [ALL]\n              add:\n")[2].splitlines()
    )
    listed = "\n".join(line for line in lines[: next(n for n, each in enumerate(lines) if "- " not in each)])
    return {str(each).lower() for each in yaml.safe_load(listed)}


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of another user."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        missing("this needs root and setpriv (util-linux)")
    process = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", "--clear-groups", "sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def done_with(capabilities: set[str], program: str, pid: int) -> bool:
    """Run a piece of the enforcer as root with these capabilities alone."""
    bounds = ",".join(["-all", *(f"+{each}" for each in sorted(capabilities))])
    command = ["setpriv", "--inh-caps=-all", f"--bounding-set={bounds}", sys.executable, "-c", program, str(pid)]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


NEEDED_FOR = {"kill": END, "sys_ptrace": SAID}


def test_a_process_of_another_user_is_attributed_without_any_and_read_and_ended_with_those_granted(
    stranger: int,
) -> None:
    assert done_with(set(), LOOK, stranger)
    assert done_with(granted(), SAID, stranger)
    assert done_with(granted(), END, stranger)


def test_without_each_of_them_something_fails(stranger: int) -> None:
    assert granted() == NEEDED_FOR.keys()
    for capability, program in NEEDED_FOR.items():
        assert not done_with(granted() - {capability}, program, stranger)
