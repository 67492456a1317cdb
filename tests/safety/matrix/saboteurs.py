"""Enforcers that are wrong on purpose, each in one way: the checker has to see it, or its silence says nothing."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from enforcer.attribution import usage
from enforcer.attribution.procfs import PidHandle
from enforcer.attribution.snapshot import total_mib
from enforcer.audit.log import AuditLog
from enforcer.audit.record import ChainHead, Kind
from enforcer.detection.types import KillDecision
from enforcer.kill.report import KillResult
from enforcer.quota.checkpoint import Checkpoint
from gpushare.reasons import Reason
from tests.safety.matrix.checker import MAX_THREADS, MORE_FDS, MORE_KIB
from tests.safety.matrix.faults import WITHIN
from tests.safety.matrix.page import Switch
from tests.safety.matrix.patient import RULES, Patient
from tests.safety.matrix.trace import Moment

INNOCENT_MIB: Final = 2 * WITHIN


@dataclass(frozen=True, slots=True)
class Saboteur:
    """What it does, the fault and the moment at which that matters, and the invariant it breaks."""

    act: Callable[[Patient], None]
    breaks: str
    fault: str = "wall clock set"
    moment: Moment = Moment.BEFORE_SAMPLE


class _Wrapped:
    """An executor whose ``execute`` is another's."""

    def __init__(self, executor: Any, execute: Callable[[Any, KillDecision], Any]) -> None:
        self._executor, self._execute = executor, execute

    def execute(self, verdict: KillDecision) -> Any:
        return self._execute(self._executor, verdict)


def _acting(execute: Callable[[Patient, Any, KillDecision], Any]) -> Callable[[Patient], None]:
    def act(patient: Patient) -> None:
        patient.wrap = lambda executor: _Wrapped(executor, lambda real, verdict: execute(patient, real, verdict))

    return act


def _hits_a_neighbour(patient: Patient, executor: Any, verdict: KillDecision) -> Any:
    os.kill(next(pid for pid, mib in patient.orders.page.rows() if mib == INNOCENT_MIB), signal.SIGTERM)
    return executor.execute(verdict)


def _hits_the_server(patient: Patient, executor: Any, verdict: KillDecision) -> Any:
    known = {os.getpid(), os.getppid(), 1, 2}
    rows = patient.orders.page.rows()
    os.kill(next(pid for pid, mib in rows if mib == WITHIN and pid not in known), signal.SIGTERM)
    return executor.execute(verdict)


def _does_nothing(_: Patient, __: Any, ___: KillDecision) -> KillResult:
    return KillResult(Reason.ALREADY_EXITED)


def _believes_its_verdict(_: Patient) -> None:
    """Does not look again before it acts: a container is for ever what it was when it held most."""
    real = usage.UsageSampler.sample
    most: dict[str, tuple[Any, ...]] = {}

    def look(self: usage.UsageSampler) -> Any:
        views = real(self)
        for container, holders in (pair for each in views for pair in (each.reading or {}).items()):
            most[container] = max(most.get(container, ()), tuple(holders), key=total_mib)
        return views

    setattr(usage.UsageSampler, "sample", look)  # noqa: B010 - mypy lets nobody assign to a method
    setattr(usage.UsageSampler, "usages_of", lambda _, quota: most.get(quota.container_id, ()))  # noqa: B010 - mypy, as above


def _appending(change: Callable[[Callable[..., ChainHead], Any, Kind, Any], ChainHead]) -> Callable[[Patient], None]:
    def act(_: Patient) -> None:
        real = AuditLog.append
        setattr(AuditLog, "append", lambda self, kind, fields: change(real, self, kind, fields))  # noqa: B010

    return act


def _records_later(real: Callable[..., ChainHead], log: Any, kind: Kind, fields: Any) -> ChainHead:
    """Promises the INTENT and writes it when all is done."""
    if kind is Kind.INTENT:
        vars(log).setdefault("late", []).append(fields)
        return ChainHead(log.head.seq + 1, log.head.hash)
    if kind in {Kind.OUTCOME, Kind.ABORTED}:
        for each in vars(log).pop("late", []):
            fields = {**fields, "intent": real(log, Kind.INTENT, each).seq}
    return real(log, kind, fields)


def _forgets_the_outcome(real: Callable[..., ChainHead], log: Any, kind: Kind, fields: Any) -> ChainHead:
    return log.head if kind is Kind.OUTCOME else real(log, kind, fields)


def _answers_twice(real: Callable[..., ChainHead], log: Any, kind: Kind, fields: Any) -> ChainHead:
    if kind is Kind.OUTCOME:
        real(log, kind, fields)
    return real(log, kind, fields)


def _does_not_sync(_: Patient) -> None:
    setattr(os, "fdatasync", lambda _: None)  # noqa: B010


def _does_not_sync_names(patient: Patient) -> None:
    real = os.fsync

    def fsync(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().name != "audit":
            real(file)

    setattr(os, "fsync", fsync)  # noqa: B010


def _rules(**changes: Any) -> Callable[[Patient], None]:
    def act(patient: Patient) -> None:
        patient.rules = replace(RULES, **changes)

    return act


def _asks_again_at_once(patient: Patient) -> None:
    patient.orders.page.switch(Switch.MPS_REFUSES, on=True)
    patient.rules = replace(RULES, cool_down=0.0)


def _grace(factor: float) -> Callable[[Patient], None]:
    def act(_: Patient) -> None:
        real = Checkpoint.read
        changed = lambda self: tuple(replace(q, grace_seconds=q.grace_seconds * factor) for q in real(self))  # noqa: E731
        setattr(Checkpoint, "read", changed)  # noqa: B010

    return act


def _keeps_handles(patient: Patient) -> None:
    def close(self: PidHandle) -> None:
        patient.kept.append(self)

    setattr(PidHandle, "close", close)  # noqa: B010


def _at_each_look(leak: Callable[[Patient], object]) -> Callable[[Patient], None]:
    def act(patient: Patient) -> None:
        real = usage.UsageSampler.sample

        def look(self: usage.UsageSampler) -> Any:
            patient.kept.append(leak(patient))
            return real(self)

        setattr(usage.UsageSampler, "sample", look)  # noqa: B010 - mypy, as above

    return act


def _threads(_: Patient) -> list[threading.Thread]:
    made = [threading.Thread(target=time.sleep, args=(60,), daemon=True) for _ in range(MAX_THREADS // 2)]
    for thread in made:
        thread.start()
    return made


def _files(_: Patient) -> list[int]:
    return [os.open("/dev/null", os.O_RDONLY) for _ in range(MORE_FDS // 2)]


BY_NAME: Final[dict[str, Saboteur]] = {
    "hits a neighbour": Saboteur(_acting(_hits_a_neighbour), "I1"),
    "believes its verdict": Saboteur(_believes_its_verdict, "I1", "memory freed", Moment.AFTER_INTENT),
    "hits MPS's server": Saboteur(_acting(_hits_the_server), "I2"),
    "records later": Saboteur(_appending(_records_later), "I3"),
    "does not sync": Saboteur(_does_not_sync, "I3"),
    "does not sync names": Saboteur(_does_not_sync_names, "I3"),
    "forgets the outcome": Saboteur(_appending(_forgets_the_outcome), "I4"),
    "answers twice": Saboteur(_appending(_answers_twice), "I4"),
    "has no breaker": Saboteur(_rules(kills=99), "I5", "everybody over"),
    "has no cool-down": Saboteur(_asks_again_at_once, "I5"),
    "has no grace": Saboteur(_grace(0.0), "I6"),
    "has half the grace": Saboteur(_grace(0.5), "I6"),
    "has twice the grace": Saboteur(_grace(2.0), "I6", moment=Moment.AFTER_DECISION),
    "keeps handles": Saboteur(_keeps_handles, "I8"),
    "keeps files": Saboteur(_at_each_look(_files), "I8"),
    "keeps threads": Saboteur(_at_each_look(_threads), "I8"),
    "keeps memory": Saboteur(_at_each_look(lambda _: b"x" * (MORE_KIB * 1024 // 2)), "I8"),
    "does nothing": Saboteur(_acting(_does_nothing), "L"),
}
