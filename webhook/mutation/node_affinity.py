"""Node affinity of a sharing pod: prefer nodes with many shares, or with few. Pure.

The stock scheduler scores nodes without looking at GPUs, so the webhook writes a preference about other sharing pods:
one term, of the least weight, so that any preference of the pod's own about pods outweighs it. Preferences about nodes
are added up by the scheduler without regard to that weight: a pod that has some is left to them.
"""

from typing import Any, Final

from gpushare.contract import MANAGED_LABEL
from gpushare.fields import mapping, objects
from webhook.mutation.podview import Json
from webhook.mutation.settings import AcrossNodes

Object = dict[str, Any]

HOSTNAME: Final = "kubernetes.io/hostname"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
WEIGHT: Final = 1
"""1 to 100: it is added up, over the sharing pods of a node, with that of the pod's own terms about pods."""
SECTIONS: Final = {"binpack": "podAffinity", "spread": "podAntiAffinity"}


def with_node_affinity(spec: Json, across: AcrossNodes) -> Object | None:
    """Return a pod's affinity with our term behind its own; ``None`` where there is nothing to add.

    A pod that says itself which nodes it prefers, or what it thinks of sharing pods, is left to it.

    Args:
        spec: of the pod; never changed.
        across: the operator's choice.

    Raises:
        PolicyDenied: what we would add to has another shape than the API's.
    """
    if across == "none":
        return None
    standing = mapping(spec.get("affinity"), "spec.affinity")
    if _prefers_nodes(spec, standing) or any(_about_shares(standing, section) for section in SECTIONS.values()):
        return None
    section = SECTIONS[across]
    ours = [*_preferred(standing, section), {"weight": WEIGHT, "podAffinityTerm": affinity_term()}]
    return {**standing, section: {**_section(standing, section), PREFERRED: ours}}


def affinity_term() -> Object:
    """The sharing pods of all namespaces, by node."""
    return {
        "labelSelector": {"matchLabels": {MANAGED_LABEL: "true"}},
        "namespaceSelector": {},
        "topologyKey": HOSTNAME,
    }


def _prefers_nodes(spec: Json, affinity: Json) -> bool:
    """Whether the pod prefers some nodes, or wants to be spread, as far as that can be had."""
    constraints = objects(spec.get("topologySpreadConstraints"), "spec.topologySpreadConstraints")
    soft = any(each.get("whenUnsatisfiable") == "ScheduleAnyway" for each in constraints)
    return soft or bool(_preferred(affinity, "nodeAffinity"))


def _about_shares(affinity: Json, section: str) -> bool:
    where = f"spec.affinity.{section}.{PREFERRED}"
    return any(
        MANAGED_LABEL in _labels(each, f"{where}[{index}].podAffinityTerm")
        for index, each in enumerate(_preferred(affinity, section))
    )


def _labels(weighted: Json, field: str) -> Json:
    selector = mapping(mapping(weighted.get("podAffinityTerm"), field).get("labelSelector"), f"{field}.labelSelector")
    return mapping(selector.get("matchLabels"), f"{field}.labelSelector.matchLabels")


def _preferred(affinity: Json, section: str) -> list[Object]:
    return objects(_section(affinity, section).get(PREFERRED), f"spec.affinity.{section}.{PREFERRED}")


def _section(affinity: Json, section: str) -> Object:
    return mapping(affinity.get(section), f"spec.affinity.{section}")
