"""Anchors: what was seen of a node's audit log off that node. Given, kept in a file, or read from the cluster.

In the cluster only the ResourceSlice's annotation is one: only the node's enforcer writes it, and never back. A
kill's Event names the head as well, but a user who may write Events in its namespace can forge one: a hint.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from enforcer.audit.record import ChainHead, published_head
from gpushare.contract import DRIVER, ENFORCER_REPORTER
from gpushare.errors import ClusterError, ConfigError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.patterns import Search
from gpushare_cli.api_errors import sentence
from gpushare_cli.audit.log_reader import Source, VerifyFinding, verified

CLUSTER: Final = "cluster"
"""As an anchor: all that the cluster has."""
MAX_BYTES: Final = 16 * 1024 * 1024
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
            lines = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        what = (
            f"neither an anchor nor a readable file ({why}); write SEQ:HASH, the name of a file with anchors, or the "
            "word cluster"
        )
        raise ConfigError(f"--anchor {name[:100]!r} is {what}") from None
    if len(lines) > MAX_BYTES:
        advice = "split it, for example by cluster, and give --anchor once for each file"
        raise ConfigError(f"--anchor {name[:100]!r} has more than {MAX_BYTES} bytes; {advice}")
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


def compared(source: Source, known: Iterable[Anchor]) -> VerifyFinding:
    """Verify a log, and compare it with those of the anchors that are of its node, or of no known one."""
    mine = [each for each in known if each.node in {"", source.node}]
    certain, hints = ([(each.head, each.source) for each in mine if each.hint is hint] for hint in (False, True))
    return verified(source, certain, hints)


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
    return [*found, *_of_events(_events(api, warn))]


def _events(api: KubeClient, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """Read Events, of which anybody may write many and large ones: no more is kept of each than is read."""
    try:
        return [_brief(each) for each in api.listing(path(CORE_V1, "events"), fieldSelector=_REPORTED)]
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        warn(f"cannot read Events ({sentence(error)}): this command compares only the anchors in ResourceSlices")
        return []


def _brief(event: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: event["metadata"].get(key) for key in ("namespace", "name")}
    reporter = {key: event.get(key) for key in ("reportingComponent", "reportingInstance")}
    return {"metadata": metadata, "message": str(event.get("message"))[:_MOST], **reporter}


def _of_events(events: list[dict[str, Any]]) -> Iterator[Anchor]:
    for event in events:
        found = _IN_A_NOTE.search(str(event.get("message")))
        if found is None or event.get("reportingComponent") != ENFORCER_REPORTER:
            continue
        named = f"Event {event['metadata'].get('namespace')}/{event['metadata'].get('name')}"
        with suppress(ConfigError):
            yield Anchor(str(event.get("reportingInstance")), ChainHead.parse(found[1]), named, hint=True)
