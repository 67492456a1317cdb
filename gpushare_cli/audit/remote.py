"""Audit logs of other nodes, read through the API server: by running ``gpu-share audit export`` in their enforcers.

That needs the right to ``create`` ``pods/exec`` where the enforcers are; following what they print needs ``get`` on
``pods/log``. What comes back was written by the node: it is compared here with what the cluster saw of it, and never
believed there.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from enforcer.audit.record import MAX_BYTES
from gpushare.errors import ClusterError, GpuShareError
from gpushare.kube_client import KubeClient
from gpushare_cli.api_errors import sentence
from gpushare_cli.audit.filters import printable
from gpushare_cli.audit.log_reader import LogPart, Source
from gpushare_cli.enforcer_pods import AT_ONCE, CONTAINER, RUNNING, EnforcerPod, asked, find_enforcers, not_running

EXPORT: Final = ("gpu-share", "audit", "export", "--format=raw")
MOST: Final = 1024 * 1024 * 1024
"""Bytes after which a node's log is no log: four times the default retention."""
LONGEST: Final = 600.0
"""Seconds that a node may let us wait, all together: else one hostile node would delay the results of the others."""
T = TypeVar("T")
PART: Final = "audit log"
"""Name of the one part a remote log has here; places in it are ``audit log:17``."""


@dataclass(frozen=True, slots=True)
class AllNodes(Generic[T]):
    """What was found in each log, in the nodes' order, and whether some could not be read."""

    found: list[tuple[Source, T]]
    failed: bool


def on_all_nodes(
    api: KubeClient,
    namespace: str | None,
    work: Callable[[Source], T],
    warn: Callable[[str], None],
    at_once: int = AT_ONCE,
) -> AllNodes[T]:
    """Do something with every node's log, several at once. A node that does not answer is reported and left out.

    Raises:
        GpuShareError: the enforcers cannot be found, see ``find_enforcers``.
    """
    results = asked([source(api, enforcer) for enforcer in find_enforcers(api, namespace)], work, at_once)
    failures = [(each, result) for each, result in results if isinstance(result, GpuShareError)]
    for each, error in failures:
        warn(str(printable(f"node {each.node}: cannot read the audit log: {sentence(error)}")))
    fine = [(each, result) for each, result in results if not isinstance(result, GpuShareError)]
    return AllNodes(fine, failed=bool(failures))


def source(api: KubeClient, enforcer: EnforcerPod) -> Source:
    """Return a node's log, read whenever its lines are asked for, which may raise ``ClusterError``."""
    return Source(enforcer.node, (LogPart(PART, lambda: lines_of(_ending(_exported(api, enforcer)))),))


def printed(api: KubeClient, enforcer: EnforcerPod) -> Iterator[bytes]:
    """Yield the lines that an enforcer printed and prints, records among them, see ``KubeClient.follow_log``."""
    return (line + b"\n" for line in api.follow_log(enforcer.pod, enforcer.namespace, CONTAINER))


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
