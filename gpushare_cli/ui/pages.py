"""The pages: which words and shapes each shows. A page is a template and what it is filled with; nothing is guessed.

A page's name is its kind and what it is about, such as ``pod_asr_tts-0``, also as a file of a snapshot: names of
Kubernetes have no ``_``. Shapes are in the units of their view boxes; templates write them as SVG.
"""

import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from enforcer.audit.record import Kind
from gpushare.errors import GpuShareError
from gpushare.kube_client import GARBAGE
from gpushare.raw_objects import mapping, text
from gpushare_cli.audit import filters
from gpushare_cli.explain import pod_record
from gpushare_cli.explain.pod_record import FindingType
from gpushare_cli.top.namespace import notices
from gpushare_cli.ui.cache import UNREADABLE, WINDOW
from gpushare_cli.ui.fleet import Fleet, GpuView, NodeView, matching
from gpushare_cli.ui.sources import NodeLog, Sources, attempt
from gpushare_cli.words import clean, sentence

WIDE: Final = 1000
"""Units of a picture from left to right."""
HIGH: Final = 100
"""Units of a curve from its bottom to its top."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a bar: where it begins, how wide it is, what it is (a class of the style sheet), and its words."""

    x: float
    width: float
    kind: str
    words: str = ""


def blocks(total: int, parts: Iterable[tuple[int, str, str]]) -> list[Block]:
    """Lay amounts out side by side, to scale; what goes beyond the total is cut."""
    found, x = list[Block](), 0.0
    for amount, kind, words in parts:
        width = min(max(0, amount) * WIDE / total if total else 0.0, WIDE - x)
        if width > 0:
            found.append(Block(round(x, 1), round(width, 1), kind, words))
        x += width
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line through points, and the line of a quota (``None``: without one), below ``top``."""

    points: str
    top: int
    quota_y: float | None
    last: int


def curve(points: Sequence[tuple[float, int]], window: float, quota: int | None = None) -> Curve | None:
    """Draw what was seen within a window of seconds; ``None`` where that is fewer than two points."""
    if len(points) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    top = max([value for _, value in points] + ([quota] if quota else [])) or 1
    drawn = " ".join(f"{(1 + at / window) * WIDE:.1f},{HIGH - value * HIGH / top:.1f}" for at, value in points)
    quota_y = None if not quota else round(HIGH - quota * HIGH / top, 1)
    return Curve(points=drawn, top=top, quota_y=quota_y, last=points[-1][1])


Row = tuple[str, list[object], Mapping[str, Any]]
"""Node, cells and pod of a record."""
PER_PAGE: Final = 50
"""Nodes of one page of the fleet."""
NOT_READ: Final = "being read; this page shows it by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A template and what fills it. ``problems`` are sentences that stand above it."""

    template: str
    title: str
    values: Mapping[str, Any]
    problems: tuple[str, ...] = ()
    found: bool = True


class Pages:
    """Makes pages of what the sources have.

    Args:
        sources: what pages show.
        namespace: that of the reader, for the links of all pages.
        wait: seconds that a page waits for what was not read yet.
        live: whether pages are served; files have no forms.
        start: whether the reader asked to start with the namespace.
    """

    def __init__(self, sources: Sources, namespace: str, *, wait: float, live: bool, start: bool = False) -> None:
        self.sources, self.namespace, self.wait, self.live, self._start = sources, namespace, wait, live, start
        self._kinds: Mapping[str, tuple[Callable[..., Page], int]] = {
            "fleet": (self.fleet, 0),
            "gpu": (self.gpu, 2),
            "namespace": (self.of_namespace, 1),
            "pod": (self.pod, 2),
            "kills": (self.kills, 0),
            "fit": (self.fit, 0),
            "waste": (self.waste, 0),
        }

    def first(self) -> str:
        """Name the page to start with: for readers who may not list GPUs, that of their namespace."""
        if not self._start and attempt(lambda: self.sources.objects("resourceslices"))[0] is not None:
            return "fleet"
        return f"namespace_{self.namespace}"

    def page(self, name: str, query: Mapping[str, str]) -> Page:
        """Make the page of a name such as ``pod_asr_tts-0``."""
        kind, *words = name.split("_")
        make, number = self._kinds.get(kind, (self.missing, len(words)))
        if len(words) != number:
            make = self.missing
        try:
            return make(query, *words)
        except GpuShareError as error:
            problem = sentence(error)
        except GARBAGE as error:
            problem = f"{UNREADABLE}: {error!r:.200}"
        return _page("empty", kind.capitalize(), [problem])

    def missing(self, _: Mapping[str, str], *words: str) -> Page:
        """Say that there is no such page."""
        what = f"there is no page of {' '.join(words)!r:.200}" if words else "there is no such page"
        return Page(template="empty.html", title="Not found", values={}, problems=(what,), found=False)

    def fleet(self, query: Mapping[str, str]) -> Page:
        """All nodes with their GPUs, and what is wrong with their enforcers."""
        number = int(query.get("page", "1")) if query.get("page", "1").isdecimal() else 1
        first, _ = self.sources.fleet(0, ())
        names = [each.name for each in self._shown(first, query, number)[2]]
        whole, problems = self.sources.fleet(min(self.wait, FLEET_WAIT) if self.live else self.wait, names)
        shown, (number, pages), nodes = self._shown(whole, query, number)
        gpus = [gpu for each in shown.nodes for gpu in each.gpus]
        return _page(
            "fleet", "Fleet", problems, nodes=nodes, number=number, pages=pages, matching=len(shown.nodes),
            all=len(whole.nodes), gpus=len(gpus), mib=sum(each.gpu.mib for each in gpus),
            reserved_mib=sum(each.reserved_mib for each in gpus), namespaces=shown.reserved(),
            checks=self.sources.checks(0 if self.live else self.wait), query=query,
            models=sorted({gpu.gpu.model for each in whole.nodes for gpu in each.gpus}),
        )  # fmt: skip

    def _shown(
        self, whole: Fleet, query: Mapping[str, str], number: int
    ) -> tuple[Fleet, tuple[int, int], Sequence[NodeView]]:
        """Return what the filter leaves, which page of how many it is, and the nodes on it."""
        shown = matching(whole, query.get("node", ""), query.get("model", ""), query.get("namespace", ""))
        if not self.live:
            return shown, (1, 1), shown.nodes
        pages = max(1, -(-len(shown.nodes) // PER_PAGE))
        number = min(max(number, 1), pages)
        return shown, (number, pages), shown.nodes[(number - 1) * PER_PAGE : number * PER_PAGE]

    def gpu(self, _: Mapping[str, str], node: str, device: str) -> Page:
        """One GPU: its shares to scale, who is over, its last minutes."""
        whole, problems = self.sources.fleet(self.wait, (node,))
        found = whole.gpu(node, device)
        if found is None:
            return self.missing({}, "GPU", device, "on node", node)
        mine = next(each for each in whole.nodes if each.name == node)
        problems += self.sources.begin_curves(found.uuid, self.wait) if self.live else []
        rows = [(share, use) for share in found.shares for use in share.uses or (None,)]
        curves = {"The whole GPU": self._curve(found.uuid, found.gpu.mib)}
        for use in (use for _, use in rows if use):
            name = f"{use.namespace}/{use.pod} {use.container}"
            curves[name] = self._curve((use.namespace, use.pod, use.container, use.gpu), use.quota_mib)
        problems += [f"{node}: {mine.problem}"] if mine.problem else []
        drawn = {key: each for key, each in curves.items() if each}
        return _page("gpu", f"{found.label} of {node}", problems, node=mine, gpu=found, rows=rows, curves=drawn)

    def of_namespace(self, _: Mapping[str, str], namespace: str) -> Page:
        """One namespace: its pods, what they use, what waits and why, kills."""
        tenant = self.sources.tenant(namespace, self.wait)
        if isinstance(tenant, GpuShareError):
            raise tenant
        events, hidden = attempt(lambda: self.sources.objects("events", namespace, fieldSelector=pod_record.KILLS))
        kills = sorted(events or (), key=pod_record.time_of, reverse=True)
        problems = [NOT_READ] if tenant is None else []
        problems += [hidden] if hidden else []
        problems += notices(namespace, tenant.pods, {}) if tenant and tenant.pods else []
        return _page(
            "namespace", f"Namespace {namespace}", problems, namespace=namespace, pods=tenant.pods if tenant else (),
            waiting=[(each, _first(each)) for each in tenant.waiting] if tenant else (),
            kills=[
                (pod_record.finding_of(each, FindingType.KILL), text(mapping(each, "involvedObject"), "name"))
                for each in kills
            ],
        )  # fmt: skip

    def pod(self, _: Mapping[str, str], namespace: str, name: str) -> Page:
        """One pod: all that ``explain`` says, its curve, the commands that help."""
        found = self.sources.explained(namespace, name, self.wait)
        title = f"Pod {namespace}/{name}"
        if isinstance(found, GpuShareError):
            raise found
        if found is None:
            return _page("empty", title, [NOT_READ])
        uses = found.usage.uses
        drawn = {
            each.container: self._curve((namespace, name, each.container, each.gpu), each.quota_mib) for each in uses
        }
        commands = (
            f"gpu-share explain {namespace}/{name}", f"gpu-share top -n {namespace} --watch",
            f"kubectl describe pod {name} -n {namespace}",
        )  # fmt: skip
        advice = [each.command for each in found.findings if each.type is FindingType.ADVICE and each.command]
        logs = self.sources.known_logs()
        rows = _rows(_records(logs, filters.RecordFilter(namespace=namespace, pod=name)), logs)
        curves = {key: each for key, each in drawn.items() if each}
        return _page(
            "pod", title, [], pod=found, uses=uses, headers=filters.HEADERS, rows=rows, curves=curves,
            commands=(*advice, *commands),
        )  # fmt: skip

    def kills(self, query: Mapping[str, str]) -> Page:
        """The audit logs of all nodes: whether each holds, and its records, the latest first."""
        logs = self.sources.logs(self.wait)
        if isinstance(logs, GpuShareError):
            raise logs
        shown = _records(logs or (), _filter(query))
        return _page(
            "kills", "Kills", [] if logs is not None else [NOT_READ], logs=logs or (), headers=filters.HEADERS,
            rows=_rows(shown, logs or ()), query=query, all=len(shown), records=[each for _, each in shown],
        )  # fmt: skip

    def export(self, query: Mapping[str, str]) -> str:
        """Return the records of the page of kills as JSON lines, each as its enforcer wrote it."""
        records = self.page("kills", query).values.get("records", ())
        return "".join(f"{json.dumps(dict(each), separators=(',', ':'))}\n" for each in records)

    def fit(self, query: Mapping[str, str]) -> Page:
        """Where a share could start now, how many, and what stands in the way."""
        asked = bool(query.get("memory"))
        found, problems = self.sources.fit(query, self.namespace) if asked else (None, [])
        return _page("fit", "Would it fit?", problems, fit=found, query=query)

    def waste(self, query: Mapping[str, str]) -> Page:
        """What workloads reserve and never used, and what that is worth."""
        advice, problems = self.sources.advice(self.namespace, self.wait)
        whole, _ = attempt(lambda: self.sources.fleet(0, ())[0])
        sizes = [gpu.gpu.mib for node in whole.nodes for gpu in node.gpus] if whole else []
        frees = sum(max(0, each.frees_mib) for each in advice)
        gpus = frees / (sum(sizes) / len(sizes)) if sizes else None
        price = _number(query.get("price", ""))
        return _page(
            "waste", "Waste", problems, advice=advice, query=query, gpus=gpus, frees_mib=frees,
            needs_mib=frees - sum(each.frees_mib for each in advice),
            most=max([1, *(max(each.reserved_mib, each.peak_mib or 0) for each in advice)]),
            weeks=self.sources.prometheus is not None,
            worth=None if gpus is None or price is None else gpus * price * MONTH_HOURS,
        )  # fmt: skip

    def _curve(self, key: Hashable, quota: int | None) -> Curve | None:
        return curve(self.sources.history.of(key, time.monotonic()), WINDOW, quota)


FLEET_WAIT: Final = 0.3
BEFORE: Final = ("usedMiB", "quotaMiB")
MAX_DIGITS: Final = 12
MONTH_HOURS: Final = 730
MOST_ROWS: Final = 500
"""So many records are shown; the export has all that are kept."""


def _filter(query: Mapping[str, str]) -> filters.RecordFilter:
    """Read the form; without it kills alone are shown."""
    named: dict[str, Any] = {key: query.get(key) or None for key in ("namespace", "pod", "node")}
    return filters.RecordFilter(**named, kind=None if query.get("show") == "all" else Kind.OUTCOME)


def _records(logs: Iterable[NodeLog], wanted: filters.RecordFilter) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the records that are asked for with their nodes, the latest first."""
    found = [(log.node, each) for log in logs for each in log.records if wanted.matches(each)]
    return sorted(found, key=lambda each: str(each[1].get("time")), reverse=True)


def _rows(records: Iterable[tuple[str, Mapping[str, Any]]], logs: Iterable[NodeLog]) -> list[Row]:
    """Return rows; to the result of a kill they add the use and the quota that the INTENT before it has."""
    intents = {(log.node, each["seq"]): each for log in logs for each in log.records if each["kind"] == Kind.INTENT}
    found = []
    for node, record in islice(records, MOST_ROWS):
        before = intents.get((node, record.get("intent")), {})
        whole = {**{key: before[key] for key in BEFORE if key in before}, **record}
        found.append((node, filters.row(whole), filters.pod_of(record)))
    return found


def reserved_blocks(gpu: GpuView) -> list[Block]:
    """Draw what is reserved of a GPU, share by share."""
    parts = ((each.reserved_mib, "reserved", f"{each.namespace}/{each.pod}") for each in gpu.shares)
    return blocks(_total(gpu), parts)


def used_blocks(gpu: GpuView) -> list[Block]:
    """Draw what is in use of a GPU: by shares, by others, by nobody that is known."""
    if gpu.used_mib is None:
        return []
    over = {"over", "killing"}
    shares = [
        (each.used_mib or 0, "over" if each.state in over else "used", f"{each.namespace}/{each.pod}")
        for each in gpu.shares
    ]
    other = gpu.used_mib - sum(amount for amount, _, _ in shares) - gpu.unaccounted_mib
    rest = [(other, "other", "processes without a share"), (gpu.unaccounted_mib, "unaccounted", "unaccounted")]
    return blocks(_total(gpu), [*shares, *rest])


def _total(gpu: GpuView) -> int:
    return max(gpu.gpu.mib, gpu.reserved_mib, gpu.used_mib or 0)


def _number(written: str) -> float | None:
    """Read a price; ``None`` for what is not one."""
    whole = written.strip().replace(",", ".", 1)
    is_one = whole.isascii() and whole.replace(".", "", 1).isdecimal() and len(whole) < MAX_DIGITS
    return float(whole) if is_one else None


def _first(found: Any) -> str:
    """Return the first sentence that says why a pod waits."""
    lines = [each for each in found.findings if each.type is FindingType.OBSTACLE]
    return "; ".join(filter(None, (lines[0].message, lines[0].hint))) if lines else found.summary.partition(": ")[2]


def _page(template: str, title: str, problems: Sequence[str], **values: Any) -> Page:
    """Return a page with each problem once."""
    found = tuple(dict.fromkeys(clean(each) for each in problems if each))
    return Page(template=f"{template}.html", title=title, values=values, problems=found)
