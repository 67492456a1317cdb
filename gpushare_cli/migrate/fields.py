"""Find in a pod the fields of other systems' dialects."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.errors import PolicyDenied
from gpushare.quantity import exact_value, same_quantity
from gpushare.raw_objects import mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli.migrate.dialects import DIALECTS, GPU, Dialect, Means, Row

Pod = Mapping[str, Any]
SECTIONS: Final = ("initContainers", "containers")
PARTS: Final = ("limits", "requests")
ASKS: Final = frozenset({Means.COUNT, Means.MEMORY, Means.PART, Means.SLICES, Means.COMPUTE, Means.REPLICA})
"""What says how much of GPUs, or of how many."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field as it stands in a pod: the container that it is for is empty where it is for the pod."""

    path: str
    key: str
    value: Any
    row: Row
    container: str = ""
    star: str = ""

    @property
    def text(self) -> str:
        """Return key and value as people write them, with the container."""
        shown = f"{self.key}: {self.value}"
        return f"{shown} ({self.container})" if self.container else shown

    def refusal(self, message: str) -> PolicyDenied:
        """Return the refusal that names field and value."""
        return PolicyDenied(self.path, f"{self.value!s:.80} {message}", Reason.INVALID_VALUE)


def containers(pod: Pod) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield section, place and container of each init and app container."""
    spec = mapping(pod, "spec")
    for section in SECTIONS:
        for index, each in enumerate(objects(spec, section)):
            yield section, index, each


def asking(pod: Pod, replicas: Collection[str]) -> list[tuple[Dialect, list[Field]]]:
    """Return the dialects in which a pod asks for a share, with all their fields.

    Args:
        pod: of which nothing is changed.
        replicas: resources that are replicas of a shared GPU.

    Raises:
        PolicyDenied: limit and request of a resource differ.
    """
    found = ((each, list(_fields(pod, each, replicas))) for each in DIALECTS)
    return [(dialect, fields) for dialect, fields in found if any(map(asks, fields))]


def asks(each: Field) -> bool:
    """Tell whether a field makes its pod one that asks for a share: alone, a number of GPUs does not."""
    if each.row.means is Means.MEMORY_LIMIT:
        return each.row.unit is not None
    return each.row.means in ASKS and (each.key != GPU or each.row.means is Means.REPLICA)


def whole_gpus(pod: Pod) -> Iterator[Field]:
    """Yield what asks for whole GPUs."""
    return (each for each in _of_resources(pod, {GPU: Row(Means.COUNT)}) if exact_value(each.value) != 0)


def _fields(pod: Pod, dialect: Dialect, replicas: Collection[str]) -> Iterator[Field]:
    if dialect.only_scheduled and mapping(pod, "spec").get("schedulerName") not in dialect.schedulers:
        return
    for each in _of_resources(pod, dialect.resources):
        if exact_value(each.value) != 0 and (each.row.means is not Means.REPLICA or each.key != GPU or GPU in replicas):
            yield each
    yield from _of_metadata(pod, "annotations", dialect.annotations)
    yield from _of_metadata(pod, "labels", dialect.labels)
    yield from _of_variables(pod, dialect.variables)


def _of_metadata(pod: Pod, kind: str, rows: Mapping[str, Row]) -> Iterator[Field]:
    for key, value in mapping(mapping(pod, "metadata"), kind).items():
        if (found := _row(rows, key)) is not None:
            row, star = found
            yield Field(f"metadata.{kind}[{key}]", key, value, row, "" if row.means is Means.NOTHING else star)


def _of_variables(pod: Pod, rows: Mapping[str, Row]) -> Iterator[Field]:
    for section, _, container in containers(pod):
        for each in objects(container, "env"):
            key, name = text(each, "name"), str(container.get("name"))
            if key in rows and "value" in each:
                yield Field(f"spec.{section}[{name}].env[{key}]", key, each["value"], rows[key], name)


def _of_resources(pod: Pod, rows: Mapping[str, Row]) -> Iterator[Field]:
    for section, _, container in containers(pod):
        name, resources = str(container.get("name")), mapping(container, "resources")
        limits, requests = (mapping(resources, part) for part in PARTS)
        for key in {**limits, **requests}:
            if (found := _row(rows, key)) is None:
                continue
            part = PARTS[key not in limits]
            value = limits.get(key, requests.get(key))
            field = Field(f"spec.{section}[{name}].resources.{part}[{key}]", key, value, found[0], name, found[1])
            if not same_quantity(requests.get(key, value), value):
                raise field.refusal(f"differs from the request of {requests[key]}; write the same value in both")
            yield field


def _row(rows: Mapping[str, Row], key: str) -> tuple[Row, str] | None:
    """Return the row of a key, and what stands for its star."""
    if key in rows:
        return rows[key], ""
    for pattern, row in rows.items():
        before, star, after = pattern.partition("*")
        if star and len(key) > len(before + after) and key.startswith(before) and key.endswith(after):
            return row, key[len(before) : len(key) - len(after)]
    return None


def keys(dialects: Sequence[Dialect] = DIALECTS) -> frozenset[str]:
    """Return the keys without a star by which pods ask for shares."""
    rows = [
        row for each in dialects for rows in (each.resources, each.annotations, each.labels) for row in rows.items()
    ]
    return frozenset(key for key, row in rows if "*" not in key and row.means in ASKS and key != GPU)
