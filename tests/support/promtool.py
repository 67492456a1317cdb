"""The programs promtool and prometheus, which ``make integration`` builds."""

import subprocess
from pathlib import Path

from tests.support.need import missing
from tests.testbed.cluster.binaries import Group, find, wanted


def need(name: str) -> Path:
    """Return the path of one of them; where it is missing the test is skipped, in CI failed."""
    binary = next(each for each in wanted(Group.MONITORING) if each.name == name)
    found = find(binary)
    if found is None:
        missing(f"{name} is neither on PATH nor in the test cluster's cache: `make integration` builds it")
    return found


def promtool(*arguments: str, stdin: bytes = b"", folder: Path | None = None) -> str:
    """Run promtool and return what it printed, its errors included; a failure adds a line with the exit code."""
    command = [str(need("promtool")), *arguments]
    done = subprocess.run(
        command, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, timeout=120, check=False
    )
    return done.stdout.decode() + (f"exit code {done.returncode}\n" if done.returncode else "")
