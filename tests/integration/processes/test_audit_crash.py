"""The audit log where a file may not grow; crashes and full disks are tests/safety's 34 to 36."""

import resource
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from enforcer.audit.log import segments
from enforcer.audit.record import verify
from tests.integration.processes.containers import PROJECT

pytestmark = pytest.mark.node


def lines(folder: Path) -> list[bytes]:
    return list(chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(folder)))


FULL = """
import resource, signal, sys, pathlib
from enforcer.audit.log import AuditLog
from enforcer.audit.record import Kind
from gpushare.errors import RecordError
log = AuditLog(pathlib.Path(sys.argv[1]))
log.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
written = failed = 0
for number in range(60):
    try:
        log.append(Kind.INTENT, {"pid": number, "note": "x" * 100})
        written += 1
    except RecordError as error:
        assert "File too large" in str(error), error
        failed += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]) + number * 50, resource.RLIM_INFINITY))
print(written, failed)
"""


@pytest.mark.parametrize("limit", [1, 500, 777, 1000, 3000])
def test_what_does_not_fit_is_an_error_and_never_half_a_record(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "audit"
    done = subprocess.run(
        [sys.executable, "-c", FULL, folder, str(limit)], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    written, failed = map(int, done.stdout.split())
    assert failed
    assert written
    assert verify(lines(folder)).ok
    assert len(lines(folder)) == written


def test_the_limit_of_this_test_run_is_untouched() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
