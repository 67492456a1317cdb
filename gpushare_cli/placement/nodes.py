"""Say whether a node takes a pod, by the scheduler's rules for cordons, taints and node selection. Pure."""

from typing import Final

from gpushare.raw_objects import Object, mapping, objects, text

HARD: Final = frozenset({"NoSchedule", "NoExecute"})
CORDON: Final[Object] = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def is_cordoned(node: Object, pod: Object) -> bool:
    """Tell whether a node takes no new pods, and this one makes no exception."""
    return mapping(node, "spec").get("unschedulable") is True and not _tolerates(pod, CORDON)


def untolerated(node: Object, pod: Object) -> str:
    """Return the first taint of a node that keeps a pod away, as ``key=value:effect``; empty where none does."""
    for taint in objects(mapping(node, "spec"), "taints"):
        if text(taint, "effect") in HARD and not _tolerates(pod, taint):
            value = f"={text(taint, 'value')}" if text(taint, "value") else ""
            return f"{text(taint, 'key')}{value}:{text(taint, 'effect')}"
    return ""


def is_selected(node: Object, pod: Object) -> bool:
    """Tell whether the node selector and the required node affinity of a pod allow a node."""
    spec, labels = mapping(pod, "spec"), mapping(mapping(node, "metadata"), "labels")
    if any(labels.get(key) != value for key, value in mapping(spec, "nodeSelector").items()):
        return False
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    required = mapping(mapping(mapping(spec, "affinity"), "nodeAffinity"), rule)
    terms = objects(required, "nodeSelectorTerms")
    return not terms or any(
        _matches(term, labels, {"metadata.name": mapping(node, "metadata").get("name")}) for term in terms
    )


def _tolerates(pod: Object, taint: Object) -> bool:
    return any(_covers(each, taint) for each in objects(mapping(pod, "spec"), "tolerations"))


def _covers(toleration: Object, taint: Object) -> bool:
    exists, key = toleration.get("operator") == "Exists", text(toleration, "key")
    same = key == text(taint, "key") or (exists and not key)
    of_value = exists or text(toleration, "value") == text(taint, "value")
    return same and of_value and text(toleration, "effect") in {"", text(taint, "effect")}


def _matches(term: Object, labels: Object, fields: Object) -> bool:
    wanted = [(each, labels) for each in objects(term, "matchExpressions")]
    wanted += [(each, fields) for each in objects(term, "matchFields")]
    return bool(wanted) and all(_holds(each, values) for each, values in wanted)


def _holds(expression: Object, labels: Object) -> bool:
    found, values = labels.get(text(expression, "key")), expression.get("values")
    among = found in values if isinstance(values, list) else False
    holds = {"In": among, "NotIn": not among, "Exists": found is not None, "DoesNotExist": found is None}
    # Gt and Lt are rare, and count as true: then the node is not called excluded.
    return holds.get(text(expression, "operator"), True)
