"""Follow the claims of NVIDIA's DRA driver, and bring their quotas to those who enforce."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.nvml.types import Gpu
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.foreign_claims import Cause, Finding, Kept, Seen, foreign_quotas
from enforcer.quota.foreign_objects import Device, kept_claim
from enforcer.quota.from_claims import parse_policy
from enforcer.quota.informer import EVERYTHING, ContainerIds, QuotaInformer, add_informers
from enforcer.quota.kept_fields import kept_pod
from enforcer.quota.types import OnExceed, Quota
from enforcer.runtime import files
from enforcer.runtime.codec import Reader, listed, row, text
from enforcer.runtime.manager import Manager, Wake
from gpushare.errors import ConfigError, NewerFormatError
from gpushare.files import read_regular_file
from gpushare.formats import FOREIGN_CLAIMS
from gpushare.kube_client import KubeClient
from gpushare.pod_claims import Use
from gpushare.reasons import Reason

log = structlog.get_logger()

FOLDER: Final = "foreign"
"""In the state directory: ``checkpoint.json``, as for our own quotas, and what was read once in this boot."""
NAME: Final = "claims.json"
MAX_BYTES: Final = 16 * 1024 * 1024
MOST_SHOWN: Final = 5
"""Findings that operators read in the status; the log has all."""
_HARMLESS: Final = {Cause.EXCLUSIVE, Cause.WHOLE}
"""Claims that nothing was to be enforced of: they are logged, and no problem."""
_DEVICE: Final = Reader(Device, blank={"uuid", "kind", "parent"})
_USE: Final = Reader(Use, blank={"container", "claim", "request", "entry"})

Object = dict[str, Any]


class ForeignRule:
    """Takes quotas from allocated claims of NVIDIA's DRA driver.

    Args:
        node: this node's name.
        checkpoint: has the rule's earlier quotas; what is kept stands beside it.
        own: the quotas of our own driver.
        boot: which boot of the machine this is; empty: nothing is kept for the next enforcer.
    """

    kinds = EVERYTHING

    def __init__(self, node: str, checkpoint: Checkpoint, own: Checkpoint, boot: str) -> None:
        self.node: Final = node
        self._checkpoint, self._own, self._boot = checkpoint, own, boot
        self._gpus: tuple[Gpu, ...] = ()
        self._file = checkpoint.path.with_name(NAME)
        self._kept: Kept | None = None
        self.findings: tuple[Finding, ...] = ()
        """The claims that give no quota, each with its reason."""

    def set_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Take in NVML's list of GPUs and MIG devices; without one, earlier quotas stay."""
        self._gpus = tuple(gpus)

    def namespaces(self) -> frozenset[str]:
        """See ``QuotaRule``."""
        return frozenset()

    def quotas(self, seen: Mapping[str, Sequence[Object]]) -> tuple[Quota, ...]:
        """See ``QuotaRule``.

        Raises:
            OSError: what was read cannot be kept.
        """
        gpus, own = self._gpus, self._own.read()
        if not gpus:
            return self._checkpoint.read()
        before = self._load() if self._kept is None else self._kept
        labelled = (each["metadata"] for each in seen["namespaces"])
        policy = {each["name"]: parse_policy(each["annotations"]) for each in labelled}
        found = foreign_quotas(
            Seen(
                node=self.node, claims=seen["claims"], slices=seen["slices"], pods=seen["pods"], gpus=gpus,
                terms=policy, own={(each.pod_uid, each.gpu) for each in own},
            ),
            before,
        )  # fmt: skip
        if found.kept != self._kept:
            with suppress(NewerFormatError):  # logged when it was read
                files.replace(self._file, encode(found.kept, self._boot), durable=True)
        self._kept = found.kept
        self._notice(found.findings)
        return found.quotas

    def problems(self) -> tuple[str, ...]:
        """Return what operators are to read of claims that cannot be read."""
        found = [str(each) for each in self.findings if each.cause not in _HARMLESS]
        more = len(found) - MOST_SHOWN
        return (*found[:MOST_SHOWN], *((f"{more} more claims give no quota; the log names them",) if more > 0 else ()))

    def _notice(self, findings: tuple[Finding, ...]) -> None:
        for each in findings:
            if each not in self.findings:
                reason = str(Reason.FOREIGN_CLAIM)
                log.info("claim without quota", reason=reason, cause=str(each.cause), found=str(each))
        self.findings = findings

    def _load(self) -> Kept:
        try:
            return decode(read_regular_file(self._file, MAX_BYTES), self._boot)
        except FileNotFoundError:
            return Kept()
        except (ConfigError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("claims read afresh", reason=str(Reason.CHECKPOINT_UNREADABLE), file=NAME, error=str(error))
            return Kept()


class EnforcedQuotas(Checkpoint):
    """The quotas of our own driver's claims and those of NVIDIA's, for those who watch and kill.

    Limits of MPS and of the driver, ResourceSlices and driver upgrades rest on our own alone.

    Args:
        own: quotas of our own driver.
        foreign: quotas of NVIDIA's.
        report: whether nobody may be killed for the latter.
    """

    def __init__(self, own: Checkpoint, foreign: Checkpoint, *, report: bool) -> None:
        super().__init__(own.path.parent)
        self._own, self._foreign, self._report = own, foreign, report

    def read(self) -> tuple[Quota, ...]:
        """See ``Checkpoint``."""
        return self._both(self._own.read(), self._foreign.read())

    @property
    def latest(self) -> tuple[Quota, ...]:
        """See ``Checkpoint``."""
        return self._both(self._own.latest, self._foreign.latest)

    def _both(self, own: tuple[Quota, ...], foreign: tuple[Quota, ...]) -> tuple[Quota, ...]:
        if not self._report:
            return own + foreign
        return own + tuple(replace(each, on_exceed=OnExceed.WARN) for each in foreign)


class ForeignInformer(QuotaInformer):
    """The objects that the rule needs: other claims, and more of each pod."""

    prefix = "foreign-"

    def __init__(self, rule: ForeignRule, changed: Wake) -> None:
        super().__init__(rule, changed)
        self._node = rule.node

    def _kept(self, kind: str, item: Object) -> Object | None:
        if kind == "claims":
            return kept_claim(item, self._node)
        return kept_pod(item, mapped=True) if kind == "pods" else super()._kept(kind, item)


def follow_foreign_claims(
    manager: Manager,
    cluster: KubeClient,
    rule: ForeignRule,
    checkpoint: Checkpoint,
    ids: ContainerIds,
    due: Wake,
) -> None:
    """Follow the objects, in threads of their own: where they cannot be read, our own quotas do not wait for them."""
    books = ForeignInformer(rule, due)
    manager.add_problem_check(rule.problems, Reason.FOREIGN_CLAIM)
    manager.add_problem_check(lambda: checkpoint.problem, Reason.CHECKPOINT_UNREADABLE)
    add_informers(manager, cluster, books, rule.node, checkpoint, ids, due)


def encode(kept: Kept, boot: str) -> bytes:
    """Write what is kept as the file has it."""
    devices = [
        {"claim": claim, "pool": pool, "device": name, **row(device)}
        for (claim, pool, name), device in kept.devices.items()
    ]
    content = {"version": FOREIGN_CLAIMS.version, "boot": boot, "devices": devices, "uses": dict(kept.uses)}
    return json.dumps(content, indent=1, default=row).encode() + b"\n"


def decode(data: bytes, boot: str) -> Kept:
    """Read the file; nothing of another boot counts.

    Raises:
        ConfigError, ValueError, TypeError, KeyError, AttributeError: it is not what ``encode`` writes.
    """
    content = FOREIGN_CLAIMS.load(data)
    if not boot or content["boot"] != boot:
        return Kept()
    any_text = partial(text, blank=True)
    devices = {
        (any_text(each["claim"]), any_text(each["pool"]), any_text(each["device"])): _DEVICE(each)
        for each in content["devices"]
    }
    return Kept(devices, {pod: listed(_USE, rows) for pod, rows in content["uses"].items()})


def state_folder(state: Path) -> Path:
    """Make the folder for quotas of claims of NVIDIA's driver.

    Raises:
        OSError: it cannot be made.
    """
    folder = state / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
