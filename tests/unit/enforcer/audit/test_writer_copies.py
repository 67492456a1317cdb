"""Copies of audit records on another stream."""

import io
import os
from pathlib import Path

import pytest

from enforcer.audit.log import AuditLog, lines_of, segments
from enforcer.audit.record import Kind, verify
from enforcer.runtime.logs import NonBlockingStream
from gpushare.errors import RecordError


def test_records_go_out_as_they_stand_in_the_log(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as lines, os.fdopen(writer, "w") as stream:
        with AuditLog(tmp_path / "audit", copy=NonBlockingStream(stream)) as audit_log:
            for kind in (Kind.INTENT, Kind.OUTCOME):
                audit_log.append(kind, {"note": "ü" * 3000})
        copied = [lines.readline(), lines.readline()]
    assert copied == list(lines_of(segments(tmp_path / "audit")[0]))
    assert verify(copied).ok


def test_what_did_not_become_durable_does_not_go_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    stream = io.StringIO()
    with AuditLog(tmp_path / "audit", copy=NonBlockingStream(stream)) as audit_log:
        monkeypatch.setattr(os, "fdatasync", failing)
        with pytest.raises(RecordError):
            audit_log.append(Kind.INTENT, {})
    assert stream.getvalue() == ""
