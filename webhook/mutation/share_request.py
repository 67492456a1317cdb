"""Parse annotations into share requests: which containers share, how much, on which conditions. Pure.

Everything a person may have mistyped is refused here, with the field, the value and what to write instead.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self

from gpushare import contract, main_container, namespace_policy
from gpushare.annotation_table import PREFIX_OF, of_pod
from gpushare.checks import Check, attempt, traced, values_of
from gpushare.errors import PolicyDenied, Problem, QuantityError
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


@dataclass(frozen=True, slots=True)
class Share:
    """What one container may use: MiB of GPU memory, and percent of a GPU's SMs or ``None`` for no cap.

    Of several ``gpus`` it may use as much of each. With a ``profile`` it is a MIG instance of its own, whose memory is
    not known here: 0.
    """

    container: str
    kind: Kind
    memory_mib: int
    compute: int | None
    profile: str = ""
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """What a pod asks for. ``shares`` come in order of their containers' start; ``models`` are lower-case.

    ``main`` is the main container where that has a share, else empty. Not ``complete`` if an annotation has a problem.
    Then amounts may be missing, and nothing is compared with the plan.
    """

    shares: tuple[Share, ...]
    main: str = ""
    models: tuple[str, ...] = ()
    same_gpu: bool = True
    complete: bool = True

    def of(self, container: str) -> Share | None:
        """Return the share of a container, ``None`` where it asked for nothing."""
        return next((share for share in self.shares if share.container == container), None)


def requests_share(annotations: Mapping[str, Any]) -> bool:
    """Tell whether a pod asks for a share, rightly or wrongly: any annotation of our domain does."""
    return any(contract.is_ours(key) for key in annotations)


def asking(pod: PodView, main: str) -> frozenset[str]:
    """Name the containers for which a pod that asks wants something, whether they exist or not."""
    named = [by_container(pod.annotations, main, key) for key in PREFIX_OF]
    return frozenset().union(*named) or frozenset({main})


def planning(pod: PodView, policy: NamespacePolicy, settings: Settings) -> Check[ShareRequest]:
    """Read the annotations of a pod that asks. With problems, the plan is not complete."""
    keys = yield from read_keys(pod)
    view = pod if keys.meant == pod.annotations else replace(pod, annotations=keys.meant)
    plan, sound = yield from traced(_plan(view, policy, settings), keys.fields)
    return plan if sound and keys.known else replace(plan, complete=False)


def _plan(pod: PodView, policy: NamespacePolicy, settings: Settings) -> Check[ShareRequest]:
    choice = pod.main
    wanted, limits = _Wanted.of(pod.annotations, choice.name), _Limits(policy, settings)
    names = wanted.names() or {choice.name}
    yield from _doubts(pod, choice, shares=choice.name in names)
    shares = yield from values_of(_share(each, wanted, limits) for each in pod.containers if each.name in names)
    models = yield from attempt(partial(read_models, pod.annotations))
    same_gpu = yield from attempt(partial(_same_gpu, pod, shares))
    yield from limits.capped(names - wanted.compute.keys() - wanted.profile.keys())
    return ShareRequest(
        shares=tuple(shares),
        main=choice.name if choice.name in names else "",
        models=models or (),
        same_gpu=same_gpu != "false",
    )


def read_models(annotations: Mapping[str, Any]) -> tuple[str, ...]:
    """Read ``gpu-model``: lower-case names, sorted, each once.

    Raises:
        PolicyDenied: an empty name, or one with other than letters, digits, space, dot, dash and underscore.
    """
    value = annotations.get(contract.GPU_MODEL)
    models: tuple[str, ...] = () if value is None else _read(ShareAnnotation(contract.GPU_MODEL, value))
    return models


def _doubts(pod: PodView, choice: main_container.Choice, *, shares: bool) -> Iterator[str]:
    """Warn where the author may have meant another container by the pod-wide annotations."""
    wanted, name = pod.annotations.get(contract.DEFAULT_CONTAINER), choice.name
    if wanted is not None and wanted not in [each.name for each in pod.apps]:
        yield f"{contract.DEFAULT_CONTAINER} names no app container; {name:.30} gets the share"
    elif main_container.is_proxy(wanted) and wanted != name:
        yield f"{contract.DEFAULT_CONTAINER} names a proxy, {wanted:.20}; {name:.30} gets the share"
    if choice.others and shares:
        another = choice.others[0] if len(choice.others[0]) <= SHOWN_WHOLE else "<container>"
        yield f"{name:.{SHOWN_WHOLE}} has the share; to change it, {_naming(pod.annotations, another)}"


def _naming(annotations: Mapping[str, Any], another: str) -> str:
    """Say which single annotation gives all that stands pod-wide to another container."""
    if main_container.amounts(annotations) > 1:
        return f"set {contract.DEFAULT_CONTAINER}: {another}"
    return f"write {main_container.key_for(annotations, another)} instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The annotations that ask for something, by container."""

    memory: Mapping[str, ShareAnnotation]
    compute: Mapping[str, ShareAnnotation]
    profile: Mapping[str, ShareAnnotation]
    gpus: Mapping[str, ShareAnnotation]
    main: str
    keys: Collection[str]
    """Of all annotations of our domain."""

    @classmethod
    def of(cls, annotations: Mapping[str, Any], main: str) -> Self:
        return cls(
            memory=by_container(annotations, main, contract.MEMORY),
            compute=by_container(annotations, main, contract.COMPUTE),
            profile=by_container(annotations, main, contract.MIG_PROFILE),
            gpus=by_container(annotations, main, contract.GPUS),
            main=main,
            keys={*filter(contract.is_ours, annotations)},
        )

    def names(self) -> set[str]:
        return {*self.memory, *self.compute, *self.profile, *self.gpus}

    def keys_of_share(self, container: str) -> list[str]:
        """Return the annotations that ask for a container's share; its own wins over the pod-wide one."""
        amounts = (contract.MEMORY, contract.COMPUTE, contract.GPUS)
        own = [PREFIX_OF[key] + container for key in amounts]
        wide = amounts if container == self.main else ()
        return [key for key in (*own, *wide) if key in self.keys]


def _share(container: Container, wanted: _Wanted, limits: "_Limits") -> Check[Share]:
    """Read what a container asks for. An amount with a problem is 0, or what a container has that does not ask."""
    name, kind, memory = container.name, container.kind, wanted.memory.get(container.name)
    cut, profile, mib = wanted.profile.get(name), "", 0
    if cut is not None:
        yield from (_beside_instance(key, cut) for key in wanted.keys_of_share(name))
        profile = (yield from attempt(partial(limits.profile, cut))) or UNREADABLE
    if memory is not None or (cut is None and limits.policy.default_memory_mib):
        mib = yield from limits.memory(memory)
    elif cut is None and wanted.keys:
        yield _no_memory(container, main=name == wanted.main)
    percent = yield from attempt(partial(limits.compute, wanted.compute.get(name)))
    gpus = yield from attempt(partial(limits.gpus, wanted.gpus.get(name)))
    return Share(name, kind, 0, None, profile) if profile else Share(name, kind, mib, percent, gpus=gpus or 1)


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

    def memory(self, asked: ShareAnnotation | None) -> Check[int]:
        if asked is None:
            field, mib = namespace_policy.field_of(contract.DEFAULT_MEMORY), self.policy.default_memory_mib or 0
        else:
            field = field_of(asked.key)
            read = yield from attempt(partial(_read, asked))
            if read is None:
                return 0
            mib = read
        as_read = format_mib(mib)
        written = as_read if asked is None or asked.value == as_read else f"{asked.value} ({as_read})"
        yield from self._bounds(field, mib, written)
        return mib

    def _bounds(self, field: str, mib: int, written: str) -> Iterator[Problem]:
        least, most = self.settings.min_memory_mib, self.settings.max_memory_mib
        if mib < least:
            message = f"{written} is below the minimum of {format_mib(least)}; write for example {format_mib(least)}"
            yield Problem(field, message, Reason.BELOW_MINIMUM)
        if message := self.policy.above_memory(mib, written):
            yield Problem(field, message, Reason.ABOVE_MAXIMUM)
        if most is not None and mib > most:
            message = f"{written} is more than the largest GPU has, {format_mib(most)}; ask for less"
            yield Problem(field, message, Reason.ABOVE_MAXIMUM)

    def compute(self, asked: ShareAnnotation | None) -> int | None:
        if asked is None:
            # No word about compute is the whole GPU, which a ceiling forbids.
            return self.policy.compute_by_default(self.settings.default_compute)
        percent: int = _read(asked)
        if message := self.policy.above_compute(percent):
            raise PolicyDenied(field_of(asked.key), message, Reason.ABOVE_MAXIMUM)
        return percent

    def gpus(self, asked: ShareAnnotation | None) -> int:
        count: int = 1 if asked is None else _read(asked)
        if asked is not None and count > 1 and self.settings.several_gpus == "refuse":
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

    def capped(self, unasked: Iterable[str]) -> Iterator[str]:
        """Warn of the containers that ask for no compute and get the maximum."""
        names, ceiling = sorted(unasked), self.policy.max_compute
        given, own = self.policy.compute_by_default(self.settings.default_compute), self.policy.default_compute
        if names and ceiling is not None and given == ceiling and not isinstance(own, int):
            yield f"{contract.MAX_COMPUTE} of this namespace caps compute at {ceiling}%: {', '.join(names)}"


def _read(asked: ShareAnnotation) -> Any:
    row = of_pod(asked.key)
    assert row is not None, "read_keys left out unknown keys"
    try:
        return row.type.parse(asked.value)
    except QuantityError as error:
        raise PolicyDenied(field_of(asked.key), error.message, error.reason) from error


def _same_gpu(pod: PodView, shares: Iterable[Share]) -> str | None:
    """Read ``same-gpu``, which cannot hold a container of several GPUs to one."""
    wide = next((each for each in shares if each.gpus > 1), None)
    value = pod.annotations.get(contract.SAME_GPU)
    if wide is None or value in (None, "false"):
        return _choice(pod, contract.SAME_GPU)
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


def _choice(pod: PodView, key: str) -> str | None:
    value = pod.annotations.get(key)
    word: str | None = None if value is None else _read(ShareAnnotation(key, value))
    return word
