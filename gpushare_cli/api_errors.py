"""Explain refusals of the API server to users: a missing right, or a conflicting write. Pure."""

from http import HTTPStatus
from typing import Final

from gpushare import contract
from gpushare.errors import ClusterError, GpuShareError
from gpushare.patterns import Search

_RIGHT: Final = Search(
    r'cannot ([a-z]+) resource "([a-z0-9./-]+)" in API group "[^"]*"(?: in the namespace "([^"]+)")?', 4096
)
"""How Kubernetes' RBAC says no. Policies say it in their own words, and those stand."""
READING: Final = frozenset({"get", "list", "watch"})
AGAIN: Final = "another client changed the object at the same time; run the command again"
EXISTS: Final = "already exists"
OPERATOR: Final = "gpu-share-operator"


def sentence(error: GpuShareError) -> str:
    """Say an error for people: of a refusal which right is missing and whom to ask for it, of a conflict what to do."""
    if not isinstance(error, ClusterError):
        return error.message
    if error.status == HTTPStatus.CONFLICT and EXISTS not in error.message:
        return f"{AGAIN} ({error.message})"
    if error.status == HTTPStatus.UNAUTHORIZED:
        return f"the API server does not accept your credentials; log in again ({error.message})"
    missing = lacking(error)
    return error.message if missing is None else f"you may not {missing[0]}; {missing[1]}"


def lacking(error: ClusterError) -> tuple[str, str] | None:
    """Return what the user may not do and what to ask for; ``None`` where it was not a right that was missing."""
    found = _RIGHT.search(error.message) if error.status == HTTPStatus.FORBIDDEN else None
    if found is None:
        return None
    verb, resource, namespace = found.groups()
    where = f"in namespace {namespace}" if namespace else "in the cluster"
    return f"{verb} {resource} {where}", _ask_for(verb, resource, namespace)


def _ask_for(verb: str, resource: str, namespace: str | None) -> str:
    """Which of the chart's roles, or of Kubernetes' own, has that right."""
    if resource == "pods/exec":
        return (
            "this permission equals root access to the nodes of those pods, so no role of gpu-share includes it; "
            "ask an administrator"
        )
    role = _role(verb, resource, namespace)
    if role is None:
        return f"ask an administrator for a role with verb {verb} on {resource}"
    return f"ask for the ClusterRole {role}" + (f" in namespace {namespace}" if namespace else "")


def _role(verb: str, resource: str, namespace: str | None) -> str | None:
    if verb in READING:
        own = {"resourceclaims": "gpu-share-view", "resourceclaimtemplates": "gpu-share-view"}
        return own.get(resource, "view") if namespace else OPERATOR
    if (verb, resource) in {("patch", "pods"), ("update", contract.RESIZE_RIGHT)}:
        return "gpu-share-resize"
    if resource in {"resourceclaims", "resourceclaimtemplates"} and namespace:
        return "gpu-share-edit"
    return OPERATOR if (verb, resource) in {("patch", "namespaces"), ("update", "namespaces")} else None
