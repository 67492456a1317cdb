"""Audit logs of other nodes, read through the API server: by running ``gpu-share audit export`` in their enforcers.

That needs the right to ``create`` ``pods/exec`` where the enforcers are; following what they print needs ``get`` on
``pods/log``. What comes back was written by the node: it is compared here with what the cluster saw of it, and never
believed there.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from enforcer.audit.record import MAX_BYTES
from gpushare.errors import ClusterError, ConfigError, GpuShareError
from gpushare.kube_client import APPS_V1, CORE_V1, KubeClient, path
from gpushare_cli.api_errors import sentence
from gpushare_cli.audit.filters import printable
from gpushare_cli.audit.log_reader import LogPart, Source

NAME: Final = "gpu-share-enforcer"
CONTAINER: Final = "enforcer"
LABELS: Final = f"app.kubernetes.io/name={NAME},app.kubernetes.io/part-of=gpu-share"
STATE: Final = "--state="
EXPORT: Final = ("gpu-share", "audit", "export", "--format=raw")
NOT_PRINTED: Final = frozenset({"--audit-to=none"})
RUNNING: Final = "Running"
AT_ONCE: Final = 8
"""So many nodes are asked at a time."""
MOST: Final = 1024 * 1024 * 1024
"""Bytes after which a node's log is no log: four times what is kept unless told otherwise."""
LONGEST: Final = 600.0
"""Seconds that a node may let us wait, all together: else one that lies would keep the others' verdicts from us."""
T = TypeVar("T")
PART: Final = "audit log"
"""Name of the one part a remote log has here; places in it are ``audit log:17``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerPod:
    """The enforcer of one node."""

    node: str
    namespace: str
    pod: str
    phase: str
    state: tuple[str, ...]
    """The argument that names its state directory, if any does."""
    silent: bool
    """Whether it does not print its records."""


def find_enforcers(api: KubeClient, namespace: str | None = None) -> list[EnforcerPod]:
    """Find the enforcers of our DaemonSet, by node. Pods that only bear its labels are none.

    Args:
        api: the cluster.
        namespace: where they are; by default wherever there is such a DaemonSet.

    Raises:
        GpuShareError: there is no such DaemonSet.
        ConfigError: there are several.
        ClusterError: the API server refused, or does not answer.
    """
    where = path(APPS_V1, "daemonsets", namespace=namespace or "")
    sets, _ = api.list(where, labelSelector=LABELS)
    if not sets:
        raise GpuShareError(
            f"no DaemonSet {NAME} exists in {namespace or 'any namespace'}; install the enforcer, or "
            "correct --enforcer-namespace"
        )
    if len(sets) > 1:
        names = ", ".join(sorted(str(each["metadata"].get("namespace")) for each in sets))
        raise ConfigError(
            f"several namespaces have a DaemonSet {NAME}: {names}; choose one with --enforcer-namespace NAMESPACE"
        )
    home, uid = str(sets[0]["metadata"].get("namespace")), sets[0]["metadata"]["uid"]
    pods, _ = api.list(path(CORE_V1, "pods", namespace=home), labelSelector=f"app.kubernetes.io/name={NAME}")
    ours = [_enforcer(pod) for pod in pods if uid in _owners(pod) and pod["spec"].get("nodeName")]
    return sorted(ours, key=lambda enforcer: (enforcer.node, enforcer.phase != RUNNING))


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
    """Do something with every node's log, several at once. A node that does not answer is told and left out.

    Raises:
        GpuShareError: the enforcers cannot be found, see ``find_enforcers``.
    """
    sources = [source(api, enforcer) for enforcer in find_enforcers(api, namespace)]

    def one(each: Source) -> T | GpuShareError:
        try:
            return work(each)
        except GpuShareError as error:
            return error

    with ThreadPoolExecutor(at_once) as pool:
        results = list(zip(sources, pool.map(one, sources), strict=True))
    failures = [(each, result) for each, result in results if isinstance(result, GpuShareError)]
    for each, error in failures:
        warn(str(printable(f"node {each.node}: cannot read the audit log: {sentence(error)}")))
    fine = [(each, result) for each, result in results if not isinstance(result, GpuShareError)]
    return AllNodes(fine, failed=bool(failures))


def source(api: KubeClient, enforcer: EnforcerPod) -> Source:
    """Return a node's log, read whenever its lines are asked for, which may raise ``ClusterError``."""
    return Source(enforcer.node, (LogPart(PART, _lines(api, enforcer)),))


def printed(api: KubeClient, enforcer: EnforcerPod) -> Iterator[bytes]:
    """Yield the lines that an enforcer printed and prints, records among them, see ``KubeClient.follow_log``."""
    return (line + b"\n" for line in api.follow_log(enforcer.pod, enforcer.namespace, CONTAINER))


def _lines(api: KubeClient, enforcer: EnforcerPod) -> Callable[[], Iterator[bytes]]:
    return lambda: lines_of(_ending(_exported(api, enforcer)))


def _exported(api: KubeClient, enforcer: EnforcerPod) -> Iterator[bytes]:
    if enforcer.phase != RUNNING:
        raise ClusterError(f"pod {enforcer.namespace}/{enforcer.pod} is {enforcer.phase or 'not running'}")
    yield from api.run(enforcer.pod, enforcer.namespace, CONTAINER, (*EXPORT, *enforcer.state))


def _ending(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pass pieces on, but not for ever; how long the one who takes them needs does not count."""
    size, waited, asked = 0, 0.0, time.monotonic()
    for piece in pieces:
        size, waited = size + len(piece), waited + time.monotonic() - asked
        if size > MOST or waited > LONGEST:
            found = f"reading did not finish within {size} bytes and {waited:.0f} s"
            raise ClusterError(f"{found}; if the log is this long, copy it from the node and read the copy with --log")
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


def _owners(pod: Mapping[str, Any]) -> set[object]:
    return {owner.get("uid") for owner in pod["metadata"].get("ownerReferences") or [] if owner.get("controller")}


def _enforcer(pod: Mapping[str, Any]) -> EnforcerPod:
    containers = [each for each in pod["spec"].get("containers") or [] if each.get("name") == CONTAINER]
    words = [word for each in containers for word in each.get("args") or []]
    return EnforcerPod(
        node=str(pod["spec"]["nodeName"]),
        namespace=str(pod["metadata"].get("namespace")),
        pod=str(pod["metadata"].get("name")),
        phase=str((pod.get("status") or {}).get("phase") or ""),
        state=tuple(word for word in words if word.startswith(STATE))[:1],
        silent=not NOT_PRINTED.isdisjoint(words),
    )
