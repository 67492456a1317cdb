"""The enforcers of the cluster, found through the API server, and commands run in them.

Running a command needs the right to ``create`` ``pods/exec`` where the enforcers are. What comes back was written by
the node: it is bounded here, and its reader believes nothing of its shape.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gpushare.errors import ClusterError, ConfigError, GpuShareError
from gpushare.kube_client import APPS_V1, CORE_V1, KubeClient, path
from gpushare_cli.words import sentence

NAME: Final = "gpu-share-enforcer"
CONTAINER: Final = "enforcer"
LABELS: Final = f"app.kubernetes.io/name={NAME},app.kubernetes.io/part-of=gpu-share"
STATE: Final = "--state="
RUNNING: Final = "Running"
AT_ONCE: Final = 8
"""So many nodes are asked at a time."""
SILENCE: Final = 5.0
"""Seconds without a word after which a node's command is given up."""
SECONDS: Final = 15.0
"""Seconds for its whole answer."""
MAX_ANSWER: Final = 64 * 1024 * 1024
"""More is not an answer: the status of a full node is less than one MiB."""
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerPod:
    """The enforcer of one node."""

    node: str
    namespace: str
    pod: str
    phase: str
    state: tuple[str, ...]
    """The argument that names its state directory, if any does."""


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
    sets, _ = api.list(path(APPS_V1, "daemonsets", namespace=namespace or ""), labelSelector=LABELS)
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


def asked(sources: Iterable[S], work: Callable[[S], T], at_once: int = AT_ONCE) -> list[tuple[S, T | GpuShareError]]:
    """Do something with each source, several at once. Returns the results, or the errors, in the sources' order."""
    known = list(sources)

    def one(source: S) -> T | GpuShareError:
        try:
            return work(source)
        except GpuShareError as error:
            return error

    with ThreadPoolExecutor(at_once) as pool:
        return list(zip(known, pool.map(one, known), strict=True))


def run(api: KubeClient, enforcer: EnforcerPod, words: Sequence[str]) -> tuple[bytes, str]:
    """Run a verb of ``gpu-share`` in an enforcer's container, on the state directory of that enforcer.

    Returns what it wrote to its standard output, and how it failed; empty: it did not.
    """
    if enforcer.phase != RUNNING:
        return b"", not_running(enforcer).message
    found, ends = bytearray(), time.monotonic() + SECONDS
    command = ("gpu-share", *words, *enforcer.state)
    try:
        for piece in api.run(enforcer.pod, enforcer.namespace, CONTAINER, command, silence=SILENCE):
            found += piece
            if len(found) > MAX_ANSWER or time.monotonic() > ends:
                limits = f"{len(found)} bytes (limits: {MAX_ANSWER} bytes, {SECONDS:.0f} s)"
                return b"", f"gpu-share stopped reading the enforcer's answer after {limits}; read the log of its pod"
    except GpuShareError as error:
        return bytes(found), sentence(error)
    return bytes(found), ""


def not_running(enforcer: EnforcerPod) -> ClusterError:
    """Return the error of a pod in which no command can be run."""
    return ClusterError(f"pod {enforcer.namespace}/{enforcer.pod} is {enforcer.phase or 'not running'}")


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
    )
