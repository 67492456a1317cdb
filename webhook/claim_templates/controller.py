"""Keeps the claim templates that pods name: creates missing ones at once, deletes unused ones after a while.

Runs in every webhook process, without a leader: creating is idempotent, deleting names the exact version seen, and a
template that goes while a pod still names it is created again. It acts on stored pods, and ahead of them on those that
this process has just admitted: Kubernetes warns of a pod whose template is not there yet.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from gpushare.errors import ClusterError
from gpushare.reasons import Reason
from webhook.claim_templates import references
from webhook.claim_templates.index import TemplateIndex
from webhook.claim_templates.references import Key, TemplateRecord
from webhook.claim_templates.workqueue import Outcome, WriteQueue
from webhook.metrics import Metrics
from webhook.must_wait import MustWait
from webhook.mutation.demand import Demand

log = structlog.get_logger()

Object = dict[str, Any]
CREATE: Final = "create"
DELETE: Final = "delete"
WRITERS: Final = 8
DELETERS: Final = 2
SETTLE_SECONDS: Final = 1.0
"""A template is left over no sooner: of one that another replica just made, the pod may not have been seen yet."""
IDLE_SECONDS: Final = 1.0
EXPECTED_SECONDS: Final = 10.0
"""How long an admitted pod counts as one that names its template. One that was stored is seen sooner."""
MAX_EXPECTED: Final = 64
"""Templates that only admitted pods name. Any client of the port can send reviews: the rest waits for stored pods."""
MAX_UNUSED: Final = 1000
"""With so many templates that no pod names, admission asks for no further ones."""
ADMISSION_WAIT: Final = 0.3
"""Seconds that a review waits for its template, which takes milliseconds; later a warning is better than more delay.

With ``GET_TIMEOUT`` it is less than the least of the chart's ``webhook.timeoutSeconds``."""


class Writer(Protocol):
    """Writes templates; the adapter for the API server is ``webhook.informers.TemplateWriter``."""

    def create(self, namespace: str, body: Object) -> str:
        """Create, idempotently; returns a result for the metrics."""

    def delete(self, template: TemplateRecord) -> str:
        """Delete that one, idempotently; returns a result for the metrics."""

    def tell(self, pod: Object, reason: Reason, note: str) -> None:
        """Write an Event on a pod whose template is not created."""


class Controller:
    """What is known of pods and templates, and the loop that writes what follows from it.

    Args:
        opted_in: whether a namespace takes part.
        refusal: why a namespace that takes part does not allow what a pod asks for, with the same rules as admission;
            ``None`` where it does.
        retention: seconds an unused template stays; at least ``SETTLE_SECONDS``.
        may_wait: whether the thread that calls ``admitted`` may wait.
    """

    def __init__(
        self,
        writer: Writer,
        metrics: Metrics,
        *,
        opted_in: Callable[[str], bool],
        refusal: Callable[[str, Demand], tuple[Reason, str] | None],
        retention: float,
        clock: Callable[[], float] = time.monotonic,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        self._may_wait = may_wait
        self._writer, self._metrics, self._refusal = writer, metrics, refusal
        self._opted_in, self._retention, self._clock = opted_in, max(retention, SETTLE_SECONDS), clock
        self._index, self._lock = TemplateIndex(), threading.Lock()
        self._wake = threading.Event()
        self._creating, self._deleting = WriteQueue(), WriteQueue()
        self._lists: set[str] = set()
        self._reported: set[Key] = set()
        """Names in conflict that were reported."""
        self._refused: list[Callable[[], None]] = []
        """Events that are to be written on pods."""
        self._expected: dict[str, float] = {}
        """Admitted pods that the index knows, by the uid it knows them under, and until when."""
        self._made = threading.Condition(self._lock)

    @property
    def synced(self) -> bool:
        """Whether both pods and templates have been listed; nothing is deleted before.

        A missing template is created as soon as templates are listed: the list of a large cluster's pods takes half a
        minute.
        """
        return self._lists == {"pods", "templates"}

    @property
    def _creates(self) -> bool:
        return "templates" in self._lists

    def reset_pods(self, pods: Iterable[Object]) -> None:
        """Know exactly these pods; what has come before a list breaks off is true all the same."""
        seen = set()
        for pod in pods:
            seen.add(pod["metadata"]["uid"])
            self._put_pod(pod)
        with self._lock:
            self._index.only_pods(seen, self._clock())
        self._listed("pods")

    def admitted(self, namespace: str, pod: Mapping[str, Any]) -> None:
        """Have the template made that a pod names which is about to be stored, and wait for it a moment.

        Kubernetes writes a warning on a pod that it sees before its template. Not for dry runs.

        Raises:
            MustWait: the template is not there yet, and the calling thread must not wait. Nothing was done.
        """
        stored = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
        key = references.reference(stored)
        if key is None or not self._creates or self._index.exists(key):
            return
        if not self._may_wait():
            raise MustWait
        item = references.wanted(stored)
        with self._made:
            if item is not None and item.sound and self._expect(item):
                self._wake.set()
                self._made.wait_for(lambda: self._index.exists(key), ADMISSION_WAIT)

    def pod_event(self, kind: str, pod: Object) -> None:
        """Take in one watch event."""
        if kind == "DELETED":
            with self._lock:
                self._index.put_pod(pod["metadata"]["uid"], None, self._clock())
        else:
            self._put_pod(pod)
        self._wake.set()

    def reset_templates(self, found: Iterable[Object]) -> None:
        """Know exactly these templates."""
        seen = set()
        for item in filter(None, map(references.existing, found)):
            seen.add(item.key)
            self._put_template(item)
        with self._lock:
            self._index.only_templates(seen, self._clock())
        self._listed("templates")

    def template_event(self, kind: str, template: Object) -> None:
        """Take in one watch event."""
        item = references.existing(template)
        if item is None:
            return
        if kind == "DELETED":
            with self._lock:
                self._index.drop_template(item.key, self._clock())
                self._deleting.discard(item.key)
        else:
            self._put_template(item)
        self._wake.set()

    def namespaces_changed(self, name: str | None = None) -> None:
        """A namespace came to take part, or ceased to; ``None``: any may have."""
        with self._lock:
            self._index.touch(name)
        self._wake.set()

    def run(self, stopped: Callable[[], bool]) -> None:
        """Reconcile until ``stopped()``; meant to be the whole life of a daemon thread."""
        # What has to go never stands before what somebody waits for.
        with ThreadPoolExecutor(WRITERS, "create") as creators, ThreadPoolExecutor(DELETERS, "delete") as deleters:
            while not stopped():
                self._wake.wait(self._patience())
                self._wake.clear()
                for write in self.step():
                    (creators if write.action == CREATE else deleters).submit(write)
                for tell in self.events():
                    deleters.submit(tell)

    def step(self) -> list["Write"]:
        """Take in what changed. Returns the writes that are due now."""
        if not self._creates:
            return []
        now = self._clock()
        with self._lock:
            self._forget_expected(now)
            for key in self._index.touched():
                self._consider(key)
            for key in self._index.expire(now - self._retention) if self.synced else ():
                self._deleting.add(key)
            writes = [Write(self._write, CREATE, key) for key in self._creating.get(now)]
            writes += [Write(self._write, DELETE, key) for key in self._deleting.get(now)]
            self._tell()
        return writes

    def events(self) -> list[Callable[[], None]]:
        """Take out the Events that are due."""
        with self._lock:
            due, self._refused = self._refused, []
        return due

    def standing(self, namespace: str, name: str) -> int | None:
        """What the template of that name asks for, as a number of ``template_content``; ``None`` without one."""
        found = self._index.templates.get((namespace, name))
        return None if found is None else found.content_key

    def _put_pod(self, pod: Object) -> None:
        """Take in a pod. Its spec's claims never change, so what is known of it is not worked out again."""
        uid, key = pod["metadata"]["uid"], references.reference(pod)
        if key is not None and self._index.named_by(uid) == key:
            return
        item = references.wanted(pod)
        if item is not None and not item.sound:
            _say_forged(pod, item.key)
        refusal = self._why_not(item)
        with self._lock:
            self._index.put_pod(uid, item, self._clock())
            if refusal is not None and not self._index.exists(key):
                self._refused.append(partial(self._writer.tell, references.named(pod), *refusal))

    def _expect(self, item: references.TemplateReference) -> bool:
        """Let the index know an admitted pod as if it were stored; false where there are too many of them."""
        uid, now = f"admitted {item.key[0]}/{item.key[1]}", self._clock()
        unused = self._index.unused if self.synced else 0  # before, nobody knows which are
        if uid not in self._expected and (len(self._expected) >= MAX_EXPECTED or unused >= MAX_UNUSED):
            return False
        self._expected[uid] = now + EXPECTED_SECONDS
        self._index.put_pod(uid, item, now)
        return True

    def _forget_expected(self, now: float) -> None:
        for uid in [uid for uid, until in self._expected.items() if until <= now]:
            del self._expected[uid]
            self._index.put_pod(uid, None, now)

    def _why_not(self, item: references.TemplateReference | None) -> tuple[Reason, str] | None:
        if item is None or item.demand is None or not self._opted_in(item.key[0]):
            return None
        return self._refusal(item.key[0], item.demand)

    def _put_template(self, item: TemplateRecord) -> None:
        with self._lock:
            self._index.put_template(item, self._clock())
            # It came about: should it go again before the next step, it is made again without a pause.
            self._creating.discard(item.key)
            self._made.notify_all()

    def _consider(self, key: Key) -> None:
        """Say what is to be done about one template."""
        wanted = self._index.is_missing(key) and self._opted_in(key[0]) and self._is_allowed(key)
        (self._creating.add if wanted else self._creating.discard)(key)
        if not self._index.is_left_over(key):
            self._deleting.discard(key)
        taken = self._index.is_taken(key)
        if taken and key not in self._reported:
            log.error(
                "claim template not created: another ResourceClaimTemplate has its name; delete that one",
                reason=Reason.TEMPLATE_CONFLICT, namespace=key[0], template=key[1],
            )  # fmt: skip
        (self._reported.add if taken else self._reported.discard)(key)

    def _is_allowed(self, key: Key) -> bool:
        """Whether the namespace allows what one of the pods asks for; the driver checks each of them again."""
        return any(self._refusal(key[0], each) is None for each in self._index.demands(key))

    def _tell(self) -> None:
        self._metrics.templates.set(self._index.ours)
        self._metrics.templates_missing.set(len(self._creating))
        self._metrics.templates_taken.set(self._index.taken)

    def _patience(self) -> float:
        with self._lock:
            now = self._clock()
            return min(IDLE_SECONDS, self._creating.next(now), self._deleting.next(now))

    def _listed(self, what: str) -> None:
        with self._lock:
            known = self.synced
            self._lists.add(what)
            if self.synced and not known:
                self._index.count_from(self._clock())
        self._wake.set()

    def _write(self, action: str, key: Key) -> None:
        """Write one template, if that is still the thing to do: since it was given out somebody else may have."""
        call = self._call(action, key)
        result, outcome = self._result(action, key, call) if call is not None else (None, Outcome.NOT_TRIED)
        with self._lock:
            (self._creating if action == CREATE else self._deleting).done(key, self._clock(), outcome)
        self._wake.set()
        if result is not None:
            self._metrics.template_operations.labels(action, result).inc()

    def _call(self, action: str, key: Key) -> Callable[[], str] | None:
        with self._lock:
            if action == CREATE and self._index.is_missing(key):
                body = self._index.content(key)
                return lambda: self._writer.create(key[0], body)
            if action == DELETE and self._index.is_left_over(key):
                item = self._index.templates[key]
                return lambda: self._writer.delete(item)
        return None

    def _result(self, action: str, key: Key, call: Callable[[], str]) -> tuple[str, Outcome]:
        where = {"action": action, "namespace": key[0], "template": key[1]}
        try:
            result = call()
        except ClusterError as error:
            log.warning("claim template not written", reason=error.reason, error=error.message, **where)
            return "error", Outcome.UNAVAILABLE if _unavailable(error) else Outcome.ANSWERED
        if result == "ok":
            reason = Reason.TEMPLATE_CREATED if action == CREATE else Reason.TEMPLATE_DELETED
            log.info("claim template written", reason=reason, **where)
        return result, Outcome.ANSWERED


@dataclass(frozen=True, slots=True)
class Write:
    """One write that is due; to be called, once, from any thread."""

    run: Callable[[str, Key], None]
    action: str
    key: Key

    def __call__(self) -> None:
        """Do it."""
        self.run(self.action, self.key)


def _unavailable(error: ClusterError) -> bool:
    """Whether the API server is at fault and not what was asked of it."""
    return error.status in {0, HTTPStatus.TOO_MANY_REQUESTS} or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _say_forged(pod: Object, key: Key) -> None:
    log.error(
        "claim template not created: the pod names a claim template that does not match its annotations",
        reason=Reason.TEMPLATE_MISMATCH, namespace=key[0], pod=pod["metadata"].get("name"), template=key[1],
    )  # fmt: skip
