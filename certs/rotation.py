"""Carries out the plan: reads two stores, takes one step, reads again, until there is nothing to do but wait.

The authority's store holds its key and is mounted by nobody; the serving store holds what the server needs:

============  =========================================================================================
authority     ``ca.crt ca.key`` the current one, ``next.crt next.key`` the next one, ``old.crt`` the old
              certificates, ``state.json`` since when the next is published, and when the old retire
serving       ``tls.crt tls.key`` the pair, ``ca.crt`` the published bundle
============  =========================================================================================

Every write names the version it was decided upon, so of two rotators at work one decides again.
"""

import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import structlog

from certs import pki, rotation_plan
from certs.rotation_plan import DesiredCertificates, Leaf, Plan, State, Step
from certs.store import CertificateStore, ConflictError
from gpushare.errors import ClusterError, GpuShareError
from gpushare.formats import CERTIFICATES
from gpushare.reasons import Reason

MAX_STEPS: Final = 12
MAX_CONFLICTS: Final = 8
MAX_OLD: Final = 4
PAIR: Final = frozenset({"tls.crt", "tls.key"})

Publish = Callable[[bytes, str], bool]
"""Makes a bundle known to clients, and when the serving certificate ends (RFC 3339). Returns whether the bundle had to
change."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCertificates:
    """What both stores hold, and what it means."""

    authority: dict[str, bytes]
    authority_version: str
    serving: dict[str, bytes]
    serving_version: str
    state: State
    old: dict[str, bytes]
    """Fingerprint of each old authority → its certificate."""

    def bundle(self) -> bytes:
        """All certificates a client has to trust now. Their order does not follow their roles: no needless writes."""
        state = self.state
        parts = dict(self.old)
        parts |= {state.current.fingerprint: self.authority["ca.crt"]} if state.current else {}
        parts |= {state.following.fingerprint: self.authority["next.crt"]} if state.following else {}
        return b"".join(parts[fingerprint] for fingerprint in sorted(parts))


@dataclass(eq=False)
class CertificateRotator:
    """Keeps one authority and one serving pair."""

    authority: CertificateStore
    serving: CertificateStore
    wanted: DesiredCertificates
    _: KW_ONLY
    publish: Publish | None = None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _reported: str = field(default="", init=False)
    _absent: ClusterError | None = field(default=None, init=False)
    """Set while nothing is there to publish to: the pair is kept in order all the same."""

    def reconcile(self) -> Plan:
        """Do all that can be done now; return the step that is left: ``NOTHING``, or ``WAIT`` with its reason.

        Raises:
            GpuShareError: a store or the API server failed, others kept writing, or all is in order but there is no
                webhook configuration.
        """
        before, self._reported = self._reported, ""  # what comes after a failure is reported again
        conflicts = 0
        for _ in range(MAX_STEPS + MAX_CONFLICTS):
            try:
                done = self._once()
            except ConflictError as error:
                conflicts += 1
                log.info("write conflict; reading the certificates again", reason=error.reason, detail=error.message)
                if conflicts > MAX_CONFLICTS:
                    raise
                continue
            if done.step in {Step.NOTHING, Step.WAIT}:
                if self._absent is not None:
                    raise self._absent
                self._report(done.reason, before)
                return done
        raise GpuShareError(
            f"{self.serving}: the rotation still has steps to do after {MAX_STEPS}; check the clock of this machine"
        )

    def _report(self, detail: str, before: str) -> None:
        if detail != before:
            log.info("certificates current", reason=Reason.CERTIFICATE_CURRENT, detail=detail)
        self._reported = detail

    def _once(self) -> Plan:
        now = self.clock()
        stored = self._published(now)
        todo = rotation_plan.next_step(stored.state, now, self.wanted)
        if todo.step not in {Step.NOTHING, Step.WAIT}:
            self._take(todo, stored, now)
        return todo

    def _published(self, now: datetime) -> StoredCertificates:
        """What is stored, once its bundle is out. After a change it looks again: it may have slept over a rotation.

        Raises:
            ConflictError: others publish something else each time.
        """
        for _ in range(MAX_CONFLICTS):
            stored = load(self.authority, self.serving, now)
            if not self._publish(stored, now):
                return stored
        raise ConflictError(
            f"{self.serving}: another client overwrites the CA bundle after each write; find and stop that client"
        )

    def _publish(self, stored: StoredCertificates, now: datetime) -> bool:
        """Bring the bundle out; note the moment where a next authority is in it for the first time, or again."""
        bundle = stored.bundle()
        changed = bool(bundle) and self._is_new(bundle, stored.state.leaf)
        if bundle and stored.serving.keys() >= PAIR and stored.serving.get("ca.crt") != bundle:
            self.serving.write({**stored.serving, "ca.crt": bundle}, stored.serving_version)
            changed = True
        if changed:
            log.info("bundle published", reason=Reason.BUNDLE_PUBLISHED, certificates=bundle.count(pki.BEGIN))
        bundled = stored.state.bundled
        if stored.state.following is None or (bundled is not None and bundled <= now and not changed):
            return changed
        noted = replace(stored.state, bundled=now)
        self.authority.write({**stored.authority, **_notes(noted, stored.old)}, stored.authority_version)
        return True

    def _is_new(self, bundle: bytes, leaf: Leaf | None) -> bool:
        """Publish it; say whether anything had to change."""
        self._absent = None
        ends = "" if leaf is None else leaf.ends.isoformat()
        try:
            return self.publish is not None and self.publish(bundle, ends)
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            self._absent = error
            return False

    def _take(self, todo: Plan, stored: StoredCertificates, now: datetime) -> None:
        match todo.step:
            case Step.ADD_NEXT:
                self._add_next(stored, now)
                reason = Reason.AUTHORITY_ADDED
            case Step.SWITCH:
                self.authority.write(_switched(stored), stored.authority_version)
                reason = Reason.AUTHORITY_SWITCHED
            case Step.DROP_OLD:
                self._drop_old(stored, now)
                reason = Reason.AUTHORITY_DROPPED
            case _:
                self._issue(stored, now)
                reason = Reason.CERTIFICATE_RENEWED
        log.info("certificates changed", reason=reason, step=todo.step, why=todo.reason, where=str(self.serving))

    def _add_next(self, stored: StoredCertificates, now: datetime) -> None:
        pair = pki.make_authority(*rotation_plan.lifetime(now, self.wanted.ca_days))
        files = stored.authority | {"next.crt": pair.certificate, "next.key": pair.key}
        self.authority.write(files | _notes(replace(stored.state, bundled=None), stored.old), stored.authority_version)

    def _drop_old(self, stored: StoredCertificates, now: datetime) -> None:
        kept = {a.fingerprint: stored.old[a.fingerprint] for a in rotation_plan.retained(stored.state, now)}
        self.authority.write({**stored.authority, **_notes(stored.state, kept)}, stored.authority_version)

    def _issue(self, stored: StoredCertificates, now: datetime) -> None:
        current = stored.state.current
        assert current is not None
        begins, ends = rotation_plan.lifetime(now, self.wanted.leaf_days, current.ends)
        signer = pki.Pair(stored.authority["ca.crt"], stored.authority["ca.key"])
        pair = pki.issue(signer, self.wanted.names, begins, ends)
        self.serving.write(
            {"ca.crt": stored.bundle(), "tls.crt": pair.certificate, "tls.key": pair.key}, stored.serving_version
        )


def load(authority: CertificateStore, serving: CertificateStore, now: datetime) -> StoredCertificates:
    """Read both stores and make sense of them; what makes none is logged and counts as absent.

    Raises:
        NewerFormatError: a newer release keeps these certificates; nothing of them may be written.
    """
    files, version = authority.read()
    served, served_version = serving.read()
    for name in ("ca.crt", "next.crt"):
        _report_damage(files, name, str(authority))
    current = pki.read_authority(files.get("ca.crt", b""), files.get("ca.key"))
    following = pki.read_authority(files.get("next.crt", b""), files.get("next.key"))
    old = _by_fingerprint(files.get("old.crt", b""))
    bundled, retire = _read_notes(files.get("state.json", b""))
    signers = [files[n] for n, a in (("ca.crt", current), ("next.crt", following)) if a is not None]
    leaf = _leaf(served, [*signers, *old.values()], str(serving))
    if leaf is not None and not leaf.issuer and now < leaf.ends:
        # The authority was lost, its certificate was not: servers that still present the leaf must stay trusted.
        old |= (found := _signer_in(served, now))
        leaf = _leaf(served, [*signers, *old.values()], str(serving))
        retire |= dict.fromkeys(found, leaf.ends) if leaf is not None else {}
    state = State(
        current=current,
        following=following,
        old=tuple(a for pem in old.values() if (a := pki.read_authority(pem, None)) is not None),
        leaf=leaf,
        bundled=bundled,
        retire=retire,
    )
    return StoredCertificates(
        authority=files,
        authority_version=version,
        serving=served,
        serving_version=served_version,
        state=state,
        old=old,
    )


def _switched(stored: StoredCertificates) -> dict[str, bytes]:
    """The authority's files once the next one is the current one."""
    state, old = stored.state, dict(stored.old)
    retire = dict(state.retire)
    if state.current is not None:
        old[state.current.fingerprint] = stored.authority["ca.crt"]
        ends = (
            state.leaf.ends if state.leaf and state.leaf.issuer == state.current.fingerprint else state.current.begins
        )
        retire[state.current.fingerprint] = ends
    files = {"ca.crt": stored.authority["next.crt"], "ca.key": stored.authority["next.key"]}
    return files | _notes(replace(state, retire=retire, bundled=None), old)


def _notes(state: State, old: dict[str, bytes]) -> dict[str, bytes]:
    """The old certificates and the dates, as files."""
    kept = dict(list(old.items())[-MAX_OLD:])
    notes = {
        "version": CERTIFICATES.version,
        "bundled": state.bundled.isoformat() if state.bundled else None,
        "retire": {k: v.isoformat() for k, v in state.retire.items() if k in kept},
    }
    return {"old.crt": b"".join(kept.values()), "state.json": json.dumps(notes).encode()}


def _read_notes(data: bytes) -> tuple[datetime | None, dict[str, datetime]]:
    """The dates; none where they cannot be read: then the next settles again, and the old stay until they expire."""
    CERTIFICATES.check(data)
    try:
        notes = json.loads(data)
        bundled = notes["bundled"] and _moment(notes["bundled"])
        return bundled, {str(k): _moment(v) for k, v in notes["retire"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, {}


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("the time has no time zone")
    return moment


def _by_fingerprint(pem: bytes, now: datetime | None = None) -> dict[str, bytes]:
    """Authorities by fingerprint; with ``now``, only those that have not expired."""
    found = ((pki.read_authority(c, None), c) for c in pki.read_certificates(pem))
    return {a.fingerprint: c for a, c in found if a is not None and (now is None or now < a.ends)}


def _signer_in(served: dict[str, bytes], now: datetime) -> dict[str, bytes]:
    """The authority in the published bundle that signed the serving certificate, if it is there and has not expired."""
    candidates = _by_fingerprint(served.get("ca.crt", b""), now)
    leaf = pki.read_leaf(served.get("tls.crt", b""), served.get("tls.key", b""), list(candidates.values()))
    return {k: v for k, v in candidates.items() if leaf is not None and k == leaf.issuer}


def _leaf(served: dict[str, bytes], signers: list[bytes], where: str) -> rotation_plan.Leaf | None:
    leaf = pki.read_leaf(served.get("tls.crt", b""), served.get("tls.key", b""), signers)
    if served and (leaf is None or leaf.problem):
        problem = leaf.problem if leaf else "tls.crt does not hold exactly one certificate that gpu-share wrote"
        log.warning("serving certificate rejected", reason=Reason.CERTIFICATE_REJECTED, where=where, detail=problem)
    return leaf


def _report_damage(files: dict[str, bytes], name: str, where: str) -> None:
    if name in files and pki.read_authority(files[name], None) is None:
        detail = f"{name} does not hold exactly one CA certificate that gpu-share wrote"
        log.warning("CA certificate rejected", reason=Reason.CERTIFICATE_REJECTED, where=where, detail=detail)
