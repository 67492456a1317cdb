"""Audit logs and clusters for tests of ``gpu-share audit``."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from enforcer.audit.log import AuditLog
from enforcer.audit.record import ChainHead, Kind
from gpushare.errors import ClusterError
from gpushare_cli.main import main

REPORTER = "gpu-share.io/enforcer"


def write(folder: Path, count: int = 6, *, node: str = "gpu-7", more: str = "") -> ChainHead:
    """Let an enforcer write a log of kills: INTENT and OUTCOME in turn. Returns its head."""
    minutes, audit_log = [0], AuditLog(folder / "audit", segment_bytes=1500)
    with mock.patch("enforcer.audit.log.utc_now", lambda: f"2026-11-20T22:{minutes[-1]:02d}:00.000Z"), audit_log as log:
        for number in range(count):
            minutes.append(number)
            pod = {"namespace": "asr" if number % 2 else "ml", "name": f"tts-{number % 3}", "uid": f"u{number}"}
            about = {"node": node, "gpu": "GPU-0123456789abcdef", "pod": pod, "container": f"model-{number % 2}"}
            if number % 2:
                targets = [{"pid": 500 + number, "result": "Killed", "steps": "terminate_client,SIGTERM"}]
                fields = {
                    **about,
                    "intent": number,
                    "result": "Killed" if number < 4 else "AlreadyExited",
                    "targets": targets,
                }
                log.append(Kind.OUTCOME, {**fields, "note": more})
            else:
                log.append(Kind.INTENT, {**about, "usedMiB": 9216, "quotaMiB": 4096, "targets": [{"pid": 501}]})
        return log.head


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Run ``gpu-share audit``; returns exit code, standard output and standard error."""
    code = main(["audit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


class Nodes:
    """A cluster with enforcers whose state directories are folders here; commands in them run here."""

    def __init__(self) -> None:
        self.states: dict[str, Path] = {}
        self.daemonsets = [self._set("gpu-share-system", "set-uid")]
        self.pods: list[dict[str, Any]] = []
        self.slices: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.refuse_events = False

    def add(self, node: str, state: Path, phase: str = "Running", owner: str = "set-uid") -> None:
        args = ["enforcer", "--state=/var/lib/elsewhere", "--poll-seconds=0.5"]
        self.states[f"enforcer-{node}"] = state
        self.pods.append(
            {
                "metadata": {
                    "name": f"enforcer-{node}", "namespace": "gpu-share-system",
                    "ownerReferences": [{"uid": owner, "controller": True}],
                },
                "spec": {"nodeName": node, "containers": [{"name": "enforcer", "args": args}]},
                "status": {"phase": phase},
            }
        )  # fmt: skip

    def annotate(self, node: str, head: object) -> None:
        metadata = {"name": f"{node}-gpu-share.io-0", "annotations": {"gpu-share.io/audit-head": str(head)}}
        self.slices.append({"metadata": metadata, "spec": {"nodeName": node, "driver": "gpu-share.io"}})

    def event(self, node: str, head: object, reporter: str = REPORTER) -> None:
        note = (
            "container model holds 9216 MiB of its 4096 MiB: the enforcer killed 1 of its processes (pid 501); "
            f"audit log {head}"
        )
        metadata = {"namespace": "asr", "name": f"tts-0-{len(self.events)}"}
        told = {"message": note, "reportingComponent": reporter, "reportingInstance": node}
        self.events.append({"metadata": metadata, **told})

    def listing(self, where: str, **query: str) -> Iterator[Any]:
        return iter(self.list(where, **query)[0])

    def list(self, where: str, **_: str) -> tuple[list[dict[str, Any]], str]:
        kind = where.rpartition("/")[2]
        if kind == "events" and self.refuse_events:
            raise ClusterError("events is forbidden", 403)
        found = {"daemonsets": self.daemonsets, "pods": self.pods, "resourceslices": self.slices, "events": self.events}
        return copy.deepcopy(found[kind]), "1"

    def run(self, pod: str, namespace: str, container: str, command: Sequence[str]) -> Iterator[bytes]:
        assert (namespace, container) == ("gpu-share-system", "enforcer")
        *words, state = command
        assert (words[:2], state) == (["gpu-share", "audit"], "--state=/var/lib/elsewhere")
        data = b"".join(self._exported(pod, words))
        yield from (data[at : at + 1000] for at in range(0, len(data), 1000))

    def _exported(self, pod: str, words: Sequence[str]) -> Iterator[bytes]:
        assert words[3:] == ["--format=raw"]
        yield from (file.read_bytes() for file in sorted((self.states[pod] / "audit").iterdir()))

    @staticmethod
    def _set(namespace: str, uid: str) -> dict[str, Any]:
        return {"metadata": {"namespace": namespace, "name": "gpu-share-enforcer", "uid": uid}}
