"""Audit logs of other nodes, read through the API server: by running ``gpu-share audit export`` in their enforcers.

That needs the right to ``create`` ``pods/exec`` where the enforcers are. What comes back was written by the node: it is
compared here with what the cluster saw of it, and never believed there.

An anchor is what was seen of a node's log off that node: given, kept in a file, or read from the cluster. There only
the ResourceSlice's annotation is one: only the node's enforcer writes it, and never back. A kill's Event names the head
as well, but a user who may write Events in its namespace can forge one: a hint.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

from enforcer.audit.record import MAX_BYTES, ChainHead, published_head
from gpushare.contract import DRIVER, ENFORCER_REPORTER
from gpushare.errors import ClusterError, ConfigError, GpuShareError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.patterns import Search
from gpushare_cli.audit.filters import printable
from gpushare_cli.audit.log_reader import LogPart, Outcome, Source, verified
from gpushare_cli.enforcer_pods import AT_ONCE, CONTAINER, RUNNING, EnforcerPod, asked, find_enforcers, not_running
from gpushare_cli.words import sentence

EXPORT: Final = ("gpu-share", "audit", "export", "--format=raw")
MOST: Final = 1024 * 1024 * 1024
"""Bytes after which a node's log is no log: four times the default retention."""
LONGEST: Final = 600.0
"""Seconds that a node may let us wait, all together: else one hostile node would delay the results of the others."""
T = TypeVar("T")
Read = tuple[list[tuple[Source, T]], bool]
"""What was found in each log, in the nodes' order, and whether some could not be read."""
PART: Final = "audit log"
"""Name of the one part a remote log has here; places in it are ``audit log:17``."""


def on_all_nodes(
    api: KubeClient,
    namespace: str | None,
    work: Callable[[Source], T],
    warn: Callable[[str], None],
    at_once: int = AT_ONCE,
) -> Read[T]:
    """Do something with every node's log, several at once. A node that does not answer is reported and left out.

    Raises:
        GpuShareError: the enforcers cannot be found, see ``find_enforcers``.
    """
    results = asked([source(api, enforcer) for enforcer in find_enforcers(api, namespace)], work, at_once)
    failures = [(each, result) for each, result in results if isinstance(result, GpuShareError)]
    for each, error in failures:
        warn(str(printable(f"node {each.node}: cannot read the audit log: {sentence(error)}")))
    fine = [(each, result) for each, result in results if not isinstance(result, GpuShareError)]
    return fine, bool(failures)


def source(api: KubeClient, enforcer: EnforcerPod) -> Source:
    """Return a node's log, read whenever its lines are asked for, which may raise ``ClusterError``."""
    return Source(enforcer.node, (LogPart(PART, lambda: lines_of(_ending(_exported(api, enforcer)))),))


def _exported(api: KubeClient, enforcer: EnforcerPod) -> Iterator[bytes]:
    if enforcer.phase != RUNNING:
        raise not_running(enforcer)
    yield from api.run(enforcer.pod, enforcer.namespace, CONTAINER, (*EXPORT, *enforcer.state))


def _ending(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pass pieces on, but not for ever; how long the one who takes them needs does not count."""
    size, waited, asked = 0, 0.0, time.monotonic()
    for piece in pieces:
        size, waited = size + len(piece), waited + time.monotonic() - asked
        if size > MOST or waited > LONGEST:
            limit = f"{MOST // 2**30} GiB" if size > MOST else f"{LONGEST:.0f} s"
            found = f"reading through the API server stopped at the limit of {limit} for a node"
            raise ClusterError(f"{found}; copy the log from the node and read the copy with --log")
        yield piece
        asked = time.monotonic()


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Cut what comes in pieces into lines with their ends. What is longer than a record comes in pieces still."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
        while len(rest) > MAX_BYTES:
            yield rest[: MAX_BYTES + 1]
            rest = rest[MAX_BYTES + 1 :]
    if rest:
        yield rest


CLUSTER: Final = "cluster"
"""As an anchor: all that the cluster has."""
MAX_ANCHORS: Final = 16 * 1024 * 1024
_IN_A_NOTE: Final = Search(r"audit log (\d{1,15}:sha256:[0-9a-f]{64})", 1024)
"""The API server takes notes of Events up to that length."""
_REPORTED: Final = f"reportingComponent={ENFORCER_REPORTER}"
_MOST: Final = 1024
"""Characters of a note that are read: the API server takes no longer ones."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A record that a node's log must hold. ``node`` is empty where it is unknown; ``source`` names the origin.

    A ``hint`` may be somebody's invention: that a log holds it proves nothing, and neither does it that it does not.
    """

    node: str
    head: ChainHead
    source: str
    hint: bool = False


def given(text: str) -> list[Anchor]:
    """Read ``--anchor``: a head, or a file of ``[NODE] SEQ:HASH`` lines as ``gpu-share audit anchors`` prints them.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return [Anchor("", ChainHead.parse(text), "--anchor")]
    except ConfigError:
        return _kept(text)


def _kept(name: str) -> list[Anchor]:
    try:
        with Path(name).open("rb") as file:
            lines = file.read(MAX_ANCHORS + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        what = (
            f"neither an anchor nor a readable file ({why}); write SEQ:HASH, the name of a file with anchors, or the "
            "word cluster"
        )
        raise ConfigError(f"--anchor {name[:100]!r} is {what}") from None
    if len(lines) > MAX_ANCHORS:
        advice = "split it, for example by cluster, and give --anchor once for each file"
        raise ConfigError(f"--anchor {name[:100]!r} has more than {MAX_ANCHORS} bytes; {advice}")
    return list(_of_lines(name, lines.decode("utf-8-sig", "replace")))


def _of_lines(name: str, text: str) -> Iterator[Anchor]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{name}:{number}"
        node, head = ("", words[0]) if ":" in words[0] or len(words) == 1 else (words[0], words[1])
        try:
            yield Anchor(node, ChainHead.parse(head), where)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.message}") from None


def compared(source: Source, known: Iterable[Anchor], *, asked: bool = True) -> Outcome:
    """Verify a log, and compare it with those of the anchors that are of its node, or of no known one."""
    mine = [each for each in known if each.node in {"", source.node}]
    certain, hints = ([(each.head, each.source) for each in mine if each.hint is hint] for hint in (False, True))
    return verified(source, certain, hints, asked=asked)


def in_cluster(api: KubeClient, warn: Callable[[str], None]) -> list[Anchor]:
    """Read what the cluster has: the slices' annotations, and as hints the Events of kills.

    Raises:
        ClusterError: slices cannot be read. If Events may not be read, only ``warn`` is called.
    """
    slices, _ = api.list(path(RESOURCE_V1, "resourceslices"), fieldSelector=f"spec.driver={DRIVER}")
    found = [
        Anchor(str(item["spec"].get("nodeName")), head, f"ResourceSlice {item['metadata']['name']}")
        for item in slices if (head := published_head(item)) is not None
    ]  # fmt: skip
    return [*found, *_of_events(api, warn)]


def _of_events(api: KubeClient, warn: Callable[[str], None]) -> Iterator[Anchor]:
    """Yield what Events of kills name. Anybody may write many and large ones: each is dropped as it comes."""
    try:
        for event in api.listing(path(CORE_V1, "events"), fieldSelector=_REPORTED):
            found, metadata = _IN_A_NOTE.search(str(event.get("message"))[:_MOST]), event["metadata"]
            if found is not None and event.get("reportingComponent") == ENFORCER_REPORTER:
                named = f"Event {metadata.get('namespace')}/{metadata.get('name')}"
                with suppress(ConfigError):
                    yield Anchor(str(event.get("reportingInstance")), ChainHead.parse(found[1]), named, hint=True)
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        warn(f"cannot read Events ({sentence(error)}): this command compares only the anchors in ResourceSlices")
