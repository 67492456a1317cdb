"""Parse annotations into share requests: which containers share, how much, on which conditions. Pure.

Everything a person may have mistyped is refused here, with the field, the value and what to write instead.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

from gpushare import contract, main_container, namespace_policy
from gpushare.annotations import Asked, asked, instances, several
from gpushare.errors import PolicyDenied, QuantityError
from gpushare.namespace_policy import NamespacePolicy
from gpushare.patterns import Pattern
from gpushare.quantity import format_mib, parse_gpus, parse_memory, parse_percent, parse_profile, profile_mib, shown
from gpushare.reasons import Reason
from webhook.mutation.podview import Container, Kind, PodView
from webhook.mutation.settings import Settings

_MODEL: Final = Pattern(r"[A-Za-z0-9 ._-]{1,63}", 63)
_PREFIXES: Final = contract.CONTAINER_PREFIXES
PRIORITIES: Final = {"low": "gives way to others on its GPU", "normal": "the default"}
SAME_GPU: Final = {"true": "the default: one GPU for all its containers", "false": "each may have another GPU"}
"""Values of two annotations, and what they do."""
_BOOLEANS: Final = {
    **dict.fromkeys(("yes", "y", "on", "1", "t"), "true"),
    **dict.fromkeys(("no", "n", "off", "0", "f"), "false"),
}
"""What people write for true and false."""
KEY_SHOWN: Final = 120
SHOWN_WHOLE: Final = 26
"""Longest name of a container that a warning shows whole, beside another such name."""
T = TypeVar("T")
MAX_NAME: Final = 63
"""Characters of a container's name, to the API server. Longer ones are not compared for a hint."""
MAX_HINTS: Final = 8
"""Containers with whose annotations a mistyped key is compared: difflib can take the cube of its length."""
MAX_MODELS: Final = 16
"""The API server refuses a selector of more than 10 KiB."""


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
class Plan:
    """What a pod asks for. ``shares`` come in order of their containers' start; ``models`` are lower-case.

    ``main`` is the main container where that has a share, else empty.
    """

    shares: tuple[Share, ...]
    main: str = ""
    low_priority: bool = False
    models: tuple[str, ...] = ()
    same_gpu: bool = True
    warnings: tuple[str, ...] = ()

    def of(self, container: str) -> Share | None:
        """Return the share of a container, ``None`` where it asked for nothing."""
        return next((share for share in self.shares if share.container == container), None)


def asks(annotations: Mapping[str, Any]) -> bool:
    """Tell whether a pod asks for a share, rightly or wrongly: any annotation of our domain does."""
    return any(contract.is_ours(key) for key in annotations)


def asking(pod: PodView) -> frozenset[str]:
    """Name the containers for which a pod that asks wants something, whether they exist or not."""
    main, _ = _main(pod)
    named = [read(pod.annotations, main.name) for read in (instances, several)]
    return frozenset().union(*asked(pod.annotations, main.name), *named) or frozenset({main.name})


def main_name(pod: PodView) -> str:
    """Name the main container."""
    return _main(pod)[0].name


def read_plan(pod: PodView, policy: NamespacePolicy, settings: Settings) -> Plan:
    """Read the annotations of a pod that asks.

    Raises:
        PolicyDenied: an unknown key or container, or a value that cannot be had.
    """
    _check_keys(pod)
    main, warnings = _main(pod)
    memory, compute = asked(pod.annotations, main.name)
    cut, counts = instances(pod.annotations, main.name), several(pod.annotations, main.name)
    names = memory.keys() | compute.keys() | cut.keys() | counts.keys() or {main.name}
    limits = _Limits(policy, settings)

    def share(each: Container) -> Share:
        mib, percent = memory.get(each.name), compute.get(each.name)
        if each.name in cut:
            beside = mib or percent or counts.get(each.name)
            return Share(each.name, each.kind, 0, None, limits.profile(cut[each.name], beside))
        if mib is None and not policy.default_memory_mib:
            _no_memory(each)
        gpus = limits.gpus(counts.get(each.name))
        return Share(each.name, each.kind, limits.memory(mib), limits.compute(percent), gpus=gpus)

    shares = tuple(share(each) for each in pod.containers if each.name in names)
    _check_one_gpu(pod, shares)
    return Plan(
        shares=shares,
        main=main.name if main.name in names else "",
        low_priority=_choice(pod, contract.PRIORITY, PRIORITIES) == "low",
        models=read_models(pod.annotations),
        same_gpu=_choice(pod, contract.SAME_GPU, SAME_GPU) != "false",
        warnings=(*warnings, *limits.capped(names - compute.keys() - cut.keys())),
    )


def read_models(annotations: Mapping[str, Any]) -> tuple[str, ...]:
    """Read ``gpu-model``: lower-case names, sorted, each once.

    Raises:
        PolicyDenied: an empty name, or one with other than letters, digits, space, dot, dash and underscore.
    """
    value = annotations.get(contract.GPU_MODEL)
    if value is None:
        return ()
    names = [name.strip(" ") for name in value.split(",", MAX_MODELS)] if isinstance(value, str) else [""]
    bad = next((name for name in names[:MAX_MODELS] if not _MODEL.fullmatch(name)), None)
    if bad is not None or len(names) > MAX_MODELS:
        problem = f"is more than {MAX_MODELS} models" if bad is None else "is no model of a GPU"
        message = f'{shown(bad or str(value))} {problem}; write for example "H100" or "H100,A100"'
        raise PolicyDenied(field_of(contract.GPU_MODEL), message, Reason.INVALID_VALUE)
    return tuple(sorted({name.lower() for name in names}))


def field_of(key: str) -> str:
    """Name a pod annotation in a message."""
    safe = ascii(key[:KEY_SHOWN])[1:-1]
    return f"metadata.annotations[{safe:.{KEY_SHOWN}}]"


def _main(pod: PodView) -> tuple[Container, tuple[str, ...]]:
    apps = {each.name: each for each in pod.containers if each.kind is Kind.APP}
    choice = main_container.choose(pod.annotations, [each.raw for each in apps.values()])
    return apps[choice.name], tuple(_doubts(pod, choice, apps))


def _doubts(pod: PodView, choice: main_container.Choice, apps: Collection[str]) -> Iterator[str]:
    """Warn where the author may have meant another container by the pod-wide annotations."""
    wanted, name = pod.annotations.get(contract.DEFAULT_CONTAINER), choice.name
    if wanted is not None and wanted not in tuple(apps):
        yield f"{contract.DEFAULT_CONTAINER} names no app container; {name:.30} counts as main"
    elif wanted in main_container.PROXIES and wanted != name:
        yield f"{contract.DEFAULT_CONTAINER} names a proxy, {wanted:.20}; {name:.30} counts as main"
    if choice.others:
        another = choice.others[0] if len(choice.others[0]) <= SHOWN_WHOLE else "<container>"
        key = main_container.key_for(pod.annotations, another)
        yield f"the share goes to container {name:.{SHOWN_WHOLE}}; {key} names another"


@dataclass(frozen=True, slots=True)
class _Limits:
    """Reads amounts and holds them against the operator's bounds."""

    policy: NamespacePolicy
    settings: Settings

    def memory(self, asked: Asked | None) -> int:
        if asked is None:
            field, mib = namespace_policy.field_of(contract.DEFAULT_MEMORY), self.policy.default_memory_mib or 0
        else:
            field = field_of(asked.key)
            mib = _read(asked, parse_memory)
        as_read = format_mib(mib)
        said = as_read if asked is None or asked.value == as_read else f"{asked.value} ({as_read})"
        self._check_memory(field, mib, said)
        return mib

    def _check_memory(self, field: str, mib: int, said: str) -> None:
        least, most = self.settings.min_memory_mib, self.settings.max_memory_mib
        if mib < least:
            message = f"{said} is below the minimum of {format_mib(least)}; write for example {format_mib(least)}"
            raise PolicyDenied(field, message, Reason.BELOW_MINIMUM)
        if message := self.policy.above_memory(mib, said):
            raise PolicyDenied(field, message, Reason.ABOVE_MAXIMUM)
        if most is not None and mib > most:
            message = f"{said} is more than the largest GPU has, {format_mib(most)}; ask for less"
            raise PolicyDenied(field, message, Reason.ABOVE_MAXIMUM)

    def compute(self, asked: Asked | None) -> int | None:
        if asked is None:
            # No word about compute is the whole GPU, which a ceiling forbids.
            return self.policy.default_compute or self.policy.max_compute
        percent = _read(asked, parse_percent)
        if message := self.policy.above_compute(percent):
            raise PolicyDenied(field_of(asked.key), message, Reason.ABOVE_MAXIMUM)
        return percent

    def gpus(self, asked: Asked | None) -> int:
        count = 1 if asked is None else _read(asked, parse_gpus)
        if asked is not None and count > 1 and self.settings.several_gpus == "refuse":
            message = (
                f"{count} GPUs for one container cannot be had: GPUs are shared through MPS here, and a process has "
                f"one MPS daemon, which serves one GPU; ask for one, or give containers of this pod a GPU each with "
                f'{contract.SAME_GPU}: "false"'
            )
            raise PolicyDenied(field_of(asked.key), message)
        return count

    def profile(self, asked: Asked, beside: Asked | None) -> str:
        """Read the profile of a MIG instance, for a container that asks for nothing beside it."""
        field = field_of(asked.key)
        if beside is not None:
            message = f"asks for a MIG instance, and {beside.key:.{KEY_SHOWN}} for a share; remove one of them"
            raise PolicyDenied(field, f"{message}: an instance has memory and compute of its own")
        profile = _read(asked, parse_profile)
        if message := self.policy.above_memory(profile_mib(profile), profile):
            raise PolicyDenied(field, message, Reason.ABOVE_MAXIMUM)
        return profile

    def capped(self, unasked: Iterable[str]) -> Iterator[str]:
        """Tell of the containers that asked for no compute and get the ceiling."""
        names, ceiling = sorted(unasked), self.policy.max_compute
        if names and ceiling is not None and self.policy.default_compute is None:
            yield f"{contract.MAX_COMPUTE} of this namespace caps compute at {ceiling}%: {', '.join(names)}"


def _read(asked: Asked, parse: Callable[[object], T]) -> T:
    try:
        return parse(asked.value)
    except QuantityError as error:
        raise PolicyDenied(field_of(asked.key), error.message, error.reason) from error


def _check_one_gpu(pod: PodView, shares: Iterable[Share]) -> None:
    """Refuse to hold to one GPU what asks for several."""
    wide = next((each for each in shares if each.gpus > 1), None)
    if wide is not None and pod.annotations.get(contract.SAME_GPU) == "true":
        message = f"'true' holds the pod to one GPU, but container {wide.container} asks for {wide.gpus}; remove it"
        raise PolicyDenied(field_of(contract.SAME_GPU), message)


def _no_memory(container: Container) -> NoReturn:
    key = contract.MEMORY_OF + container.name
    message = (
        f"is missing: container {container.name} asks for a share without saying how much memory; "
        f"write for example {key}: 4Gi, or {contract.MEMORY}: 4Gi for the main container"
    )
    raise PolicyDenied(field_of(key), message, Reason.MEMORY_MISSING)


def _choice(pod: PodView, key: str, allowed: Mapping[str, str]) -> str | None:
    value = pod.annotations.get(key)
    if value is None or value in tuple(allowed):
        return value
    word = str(value).strip().lower()
    meant = word if word in allowed else _BOOLEANS.get(word)
    choices = " or ".join(f'"{each}" ({does})' for each, does in allowed.items())
    advice = f'"{meant}"' if meant in allowed else choices
    neither = " nor ".join(f'"{each}"' for each in allowed)
    message = f"{shown(str(value))} is neither {neither}; write {advice}"
    raise PolicyDenied(field_of(key), message, Reason.INVALID_VALUE)


def _check_keys(pod: PodView) -> None:
    ours = sorted(key for key in pod.annotations if contract.is_ours(key) and key not in contract.POD_ANNOTATIONS)
    names = _names(pod)
    for key in ours:
        prefix, name = key[: key.find("/") + 1], key[key.find("/") + 1 :]
        if prefix not in _PREFIXES:
            raise PolicyDenied(field_of(key), _unknown_key(pod, key), Reason.UNKNOWN_ANNOTATION)
        if name not in names:
            raise PolicyDenied(field_of(key), _unknown_container(names, name), Reason.UNKNOWN_CONTAINER)


def _names(pod: PodView) -> list[str]:
    """Name the containers that may have a share: ephemeral ones and our sidecar may not."""
    return [each.name for each in pod.containers if each.kind is not Kind.EPHEMERAL and each.name != contract.SIDECAR]


def _unknown_key(pod: PodView, key: str) -> str:
    if key.startswith(contract.RESIZE_OF):
        return f"changes the quota of a container that runs; remove it, and ask for a share with {contract.MEMORY}: 4Gi"
    if key in contract.NAMESPACE_ANNOTATIONS:
        return "is an annotation of namespaces, set by the operator; remove it from the pod"
    if key == contract.NAMESPACE_LABEL:
        return f"is a label of namespaces and nodes; remove it, and ask for a share with {contract.MEMORY}: 4Gi"
    if key == contract.MANAGED_LABEL:
        return f"is a label, which gpu-share itself sets; remove it, and ask for a share with {contract.MEMORY}: 4Gi"
    names = _comparable(_names(pod))[:MAX_HINTS]
    known = [*contract.POD_ANNOTATIONS, *(prefix + name for prefix in _PREFIXES for name in names)]
    near = get_close_matches(key[:KEY_SHOWN].lower(), known, 1)
    return f"no such annotation; did you mean {near[0]}?" if near else f"no such annotation; known are {_known()}"


def _known() -> str:
    return ", ".join((*contract.POD_ANNOTATIONS, *(f"{prefix}<container>" for prefix in _PREFIXES)))


def _comparable(names: Iterable[str]) -> list[str]:
    return [name for name in names if len(name) <= MAX_NAME]


def _unknown_container(names: Sequence[str], name: str) -> str:
    near = get_close_matches(name[:MAX_NAME], _comparable(names), 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names[:8])}"
    return f"the pod has no container named {shown(name)}; {hint}"
