"""Parse annotations into share requests: which containers share, how much, on which conditions. Pure.

Everything a person may have mistyped is refused here, with the field, the value and what to write instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import contract, main_container, namespace_policy
from gpushare.annotation_table import PREFIX_OF, of_pod
from gpushare.errors import PolicyDenied, Problem, QuantityError
from gpushare.findings import Findings
from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import format_mib, profile_mib, quoted
from gpushare.reasons import Reason
from gpushare.share_annotations import ShareAnnotation, by_container
from webhook.mutation.annotation_keys import KEY_SHOWN, MAX_NAME, field_of, read_keys
from webhook.mutation.podview import Container, Kind, PodView
from webhook.mutation.settings import Settings

SHOWN_WHOLE: Final = 22
"""Longest name of a container that a warning shows whole, beside another such name."""
UNREADABLE: Final = "?"
"""Profile of a MIG instance in a plan that is not complete."""
_AMOUNTS: Final = (contract.MEMORY, contract.COMPUTE, contract.MIG_PROFILE, contract.GPUS)


@dataclass(frozen=True, slots=True)
class Share:
    """What one container may use: MiB of GPU memory, and percent of a GPU's SMs or ``None`` for no cap.

    With a ``limit_mib`` it may borrow up to that. Of several ``gpus`` it may use as much of each. With a ``profile`` it
    is a MIG instance of its own, whose memory is not known here: 0.
    """

    container: str
    kind: Kind
    memory_mib: int
    compute: int | None
    profile: str = ""
    gpus: int = 1
    limit_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """What a pod asks for. ``shares`` come in order of their containers' start; ``models`` are lower-case.

    ``main`` is the main container where that has a share, else empty. ``counted``: the claim states its amounts for
    ResourceQuotas. Not ``complete`` if an annotation has a problem.
    Then amounts may be missing, and nothing is compared with the plan.
    """

    shares: tuple[Share, ...]
    main: str = ""
    models: tuple[str, ...] = ()
    same_gpu: bool = True
    counted: bool = False
    complete: bool = True

    def of(self, container: str) -> Share | None:
        """Return the share of a container, ``None`` where it asked for nothing."""
        for share in self.shares:
            if share.container == container:
                return share
        return None


@dataclass(frozen=True, slots=True)
class Asked:
    """What annotations ask for. ``by_key`` has the annotation of each container, as ``by_container`` returns them.

    ``main`` is the container that pod-wide annotations mean, ``names`` those that ask, whether they exist or not.
    """

    annotations: Mapping[str, Any]
    main: main_container.Choice
    by_key: Mapping[str, Mapping[str, ShareAnnotation]]
    names: frozenset[str]


def requests_share(annotations: Mapping[str, Any]) -> bool:
    """Tell whether a pod asks for a share, rightly or wrongly: any annotation of our domain does."""
    return any(contract.GROUP in key.lower() and contract.is_ours(key) for key in annotations)


def read_asked(pod: PodView, annotations: Mapping[str, Any]) -> Asked:
    """Find what annotations ask for, by container, before a value is read."""
    # A container whose name cannot be read has an empty one in the view.
    apps = [each.raw if each.name else {**each.raw, "name": ""} for each in pod.containers if each.kind is Kind.APP]
    main = main_container.choose(annotations, apps)
    wanted = by_container(annotations, main.name)
    return Asked(annotations, main, wanted, frozenset().union(*wanted.values()) or frozenset({main.name}))


def planning(
    findings: Findings, pod: PodView, asked: Asked, policy: NamespacePolicy, settings: Settings
) -> ShareRequest:
    """Read what the annotations of a pod ask for. With problems, the plan is not complete."""
    keys = read_keys(findings, pod)
    if keys.known:
        before = len(findings.problems)
        plan = _plan(findings, pod, asked, policy, settings)
        return plan if len(findings.problems) == before else replace(plan, complete=False)

    def as_written(problem: Problem) -> Problem:
        return replace(problem, field=keys.fields.get(problem.field, problem.field))

    plan = _plan(findings.through(as_written), pod, read_asked(pod, keys.meant), policy, settings)
    return replace(plan, complete=False)


def _plan(findings: Findings, pod: PodView, asked: Asked, policy: NamespacePolicy, settings: Settings) -> ShareRequest:
    limits, main, names = _Limits(policy, settings), asked.main.name, asked.names
    _doubts(findings, pod, asked)
    shares = [_share(findings, each, asked, limits) for each in pod.containers if each.name in names]
    models = findings.attempt(read_models, asked.annotations)
    same_gpu = findings.attempt(_same_gpu, asked.annotations, shares)
    limits.capped(findings, names.difference(asked.by_key[contract.COMPUTE], asked.by_key[contract.MIG_PROFILE]))
    return ShareRequest(
        shares=tuple(shares), main=main if main in names else "", models=models or (), same_gpu=same_gpu != "false",
        counted=policy.count_amounts,
    )  # fmt: skip


def read_models(annotations: Mapping[str, Any]) -> tuple[str, ...]:
    """Read ``gpu-model``: lower-case names, sorted, each once.

    Raises:
        PolicyDenied: an empty name, or one with other than letters, digits, space, dot, dash and underscore.
    """
    value = annotations.get(contract.GPU_MODEL)
    models: tuple[str, ...] = () if value is None else _read(ShareAnnotation(contract.GPU_MODEL, value))
    return models


def _doubts(findings: Findings, pod: PodView, asked: Asked) -> None:
    """Warn where the author may have meant another container by the pod-wide annotations."""
    wanted, name, others = asked.annotations.get(contract.DEFAULT_CONTAINER), asked.main.name, asked.main.others
    if wanted is not None and wanted not in [each.name for each in pod.containers if each.kind is Kind.APP]:
        findings.warn(f"{contract.DEFAULT_CONTAINER} names no app container; {name:.30} gets the share")
    elif wanted is not None and wanted != name and main_container.is_proxy(wanted):
        findings.warn(f"{contract.DEFAULT_CONTAINER} names a proxy, {wanted:.20}; {name:.30} gets the share")
    if others and name in asked.names:
        another = others[0] if len(others[0]) <= SHOWN_WHOLE else "<container>"
        findings.warn(f"{name:.{SHOWN_WHOLE}} has the share; to change it, {_naming(asked.annotations, another)}")


def _naming(annotations: Mapping[str, Any], another: str) -> str:
    """Say which single annotation gives all that stands pod-wide to another container."""
    if main_container.amounts(annotations) > 1:
        return f"set {contract.DEFAULT_CONTAINER}: {another}"
    return f"write {main_container.key_for(annotations, another)} instead"


def _share(findings: Findings, container: Container, asked: Asked, limits: "_Limits") -> Share:
    """Read what a container asks for. An amount with a problem is 0, or what a container has that does not ask."""
    name, kind = container.name, container.kind
    memory, compute, cut, gpus = [asked.by_key[key].get(name) for key in _AMOUNTS]
    profile, mib = "", 0
    if cut is not None:
        for key in _keys_of_share(asked, name):
            findings.add(_beside_instance(key, cut))
        profile = findings.attempt(limits.profile, cut) or UNREADABLE
    if memory is not None or (cut is None and limits.policy.default_memory_mib):
        mib = limits.memory(findings, memory)
    elif cut is None and requests_share(asked.annotations):
        findings.add(_no_memory(container, main=name == asked.main.name))
    wanted = asked.by_key[contract.MEMORY_LIMIT]
    most = findings.attempt(limits.memory_limit, wanted.get(name), mib) if wanted and cut is None else None
    percent = findings.attempt(limits.compute, compute)
    number = (gpus and findings.attempt(limits.gpus, gpus)) or 1
    return Share(name, kind, 0, None, profile) if profile else Share(name, kind, mib, percent, "", number, most)


def _keys_of_share(asked: Asked, container: str) -> list[str]:
    """Return the annotations that ask for a container's share; its own wins over the pod-wide one."""
    amounts = (contract.MEMORY, contract.MEMORY_LIMIT, contract.COMPUTE, contract.GPUS)
    own = [PREFIX_OF[key] + container for key in amounts]
    wide = amounts if container == asked.main.name else ()
    return [key for key in (*own, *wide) if key in asked.annotations]


def _beside_instance(key: str, cut: ShareAnnotation) -> Problem:
    message = (
        f"requests a share, but {cut.key:.{KEY_SHOWN}} requests a MIG instance, which has its own memory and "
        "compute; remove one of the two annotations"
    )
    return Problem(field_of(key), message)


@dataclass(frozen=True, slots=True)
class _Limits:
    """Reads amounts and compares them with the operator's bounds."""

    policy: NamespacePolicy
    settings: Settings

    def memory(self, findings: Findings, asked: ShareAnnotation | None) -> int:
        if asked is None:
            field, mib = namespace_policy.field_of(contract.DEFAULT_MEMORY), self.policy.default_memory_mib or 0
        else:
            field = field_of(asked.key)
            read = findings.attempt(_read, asked)
            if read is None:
                return 0
            mib = read
        as_read = format_mib(mib)
        written = as_read if asked is None or asked.value == as_read else f"{asked.value} ({as_read})"
        self._bounds(findings, field, mib, written)
        return mib

    def _bounds(self, findings: Findings, field: str, mib: int, written: str) -> None:
        least, most = self.settings.min_memory_mib, self.settings.max_memory_mib
        if mib < least:
            message = f"{written} is below the minimum of {format_mib(least)}; write for example {format_mib(least)}"
            findings.problem(field, message, Reason.BELOW_MINIMUM)
        if message := self.policy.above_memory(mib, written):
            findings.problem(field, message, Reason.ABOVE_MAXIMUM)
        if most is not None and mib > most:
            message = f"{written} is above the maximum of {format_mib(most)} (webhook.maxMemory); ask for less"
            findings.problem(field, message, Reason.ABOVE_MAXIMUM)

    def memory_limit(self, asked: ShareAnnotation | None, reserved_mib: int) -> int | None:
        if asked is None:
            return None
        mib: int = _read(asked)
        if mib < reserved_mib:
            message = f"{asked.value} is below the {format_mib(reserved_mib)} that the container reserves; write more"
            raise PolicyDenied(field_of(asked.key), message, Reason.BELOW_MINIMUM)
        if message := self.policy.above_memory_limit(mib, str(asked.value)):
            raise PolicyDenied(field_of(asked.key), message, Reason.ABOVE_MAXIMUM)
        return mib

    def compute(self, asked: ShareAnnotation | None) -> int | None:
        if asked is None:
            # No word about compute is the whole GPU, which a ceiling forbids.
            return self.policy.compute_by_default(self.settings.default_compute)
        percent: int = _read(asked)
        if message := self.policy.above_compute(percent):
            raise PolicyDenied(field_of(asked.key), message, Reason.ABOVE_MAXIMUM)
        return percent

    def gpus(self, asked: ShareAnnotation) -> int:
        count: int = _read(asked)
        if count > 1 and self.settings.several_gpus == "refuse":
            message = (
                f"{count} GPUs for one container are not possible in this cluster: with MPS, a process can use only "
                "one MPS daemon, which serves one GPU; ask for one GPU, or give each container of the pod "
                f'its own GPU with {contract.SAME_GPU}: "false"'
            )
            raise PolicyDenied(field_of(asked.key), message)
        return count

    def profile(self, asked: ShareAnnotation) -> str:
        """Read the profile of a MIG instance."""
        profile: str = _read(asked)
        if message := self.policy.above_memory(profile_mib(profile), profile):
            raise PolicyDenied(field_of(asked.key), message, Reason.ABOVE_MAXIMUM)
        return profile

    def capped(self, findings: Findings, unasked: Iterable[str]) -> None:
        """Warn of the containers that ask for no compute and get the maximum."""
        names, ceiling, own = sorted(unasked), self.policy.max_compute, self.policy.default_compute
        if not names or ceiling is None or isinstance(own, int):
            return
        if self.policy.compute_by_default(self.settings.default_compute) == ceiling:
            findings.warn(f"set {contract.COMPUTE} of {', '.join(names)}: {contract.MAX_COMPUTE} gives it {ceiling}%")


def _read(asked: ShareAnnotation) -> Any:
    row = of_pod(asked.key)
    assert row is not None, "read_keys left out unknown keys"
    try:
        return row.type.parse(asked.value)
    except QuantityError as error:
        raise PolicyDenied(field_of(asked.key), error.message, error.reason) from error


def _same_gpu(annotations: Mapping[str, Any], shares: Iterable[Share]) -> str | None:
    """Read ``same-gpu``, which cannot hold a container of several GPUs to one."""
    value = annotations.get(contract.SAME_GPU)
    if value is None:
        return None
    wide = next((each for each in shares if each.gpus > 1), None)
    if wide is None or value == "false":
        word: str = _read(ShareAnnotation(contract.SAME_GPU, value))
        return word
    message = (
        f"{quoted(str(value))} puts the whole pod on one GPU, but container {wide.container:.{MAX_NAME}} asks for "
        f"{wide.gpus} GPUs; remove this annotation"
    )
    raise PolicyDenied(field_of(contract.SAME_GPU), message)


def _no_memory(container: Container, *, main: bool) -> Problem:
    key = f"{contract.MEMORY_OF}{container.name:.{MAX_NAME}}"
    wide = f", or {contract.MEMORY}: 4Gi for the main container" if main else ""
    message = (
        f"is missing: container {container.name:.{MAX_NAME}} requests a share without an amount of memory; write for "
        f"example {key}: 4Gi{wide}"
    )
    return Problem(field_of(key), message, Reason.MEMORY_MISSING)
