"""The audit log on a full disk: nothing is done that is not on record, the room set aside is used, service resumes."""

import json
import os
import subprocess
import sys

from tests.integration.processes.containers import PROJECT
from tests.support import extent
from tests.support.need import missing


def test_on_a_full_disk_no_signal_goes_unrecorded() -> None:
    alone = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0 or subprocess.run([*alone, "true"], check=False, capture_output=True).returncode != 0:
        missing("no small disk can be mounted here (not root, or no mount namespaces)")
    fills = extent.trials(20, 1000)
    command = [*alone, sys.executable, "-m", "tests.support.full_disk", str(fills), "35"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["broken"] == []
    assert found["unrecorded"] == 0
    assert found["lost"] == 0
    assert found["fills"] == fills
    assert found["signals"] > fills
    assert found["refused"] > fills / 2, "the disk was really full"
    assert found["reserve"] >= fills / 4, "and the room set aside really used"
    assert found["resumed"] == fills
    what = f"{found['unrecorded']} of {found['signals']:,} signals in {fills:,} fills"
    extent.figure("35", "signals without a durable INTENT on a full, failing or read-only disk", what)
    extent.figure("35", "fills in which the room set aside was used; after which service resumed",
                  f"{found['reserve']:,}; {found['resumed']:,} of {fills:,}")  # fmt: skip
