"""Reads of objects that may be missing or hidden from the user. Any command uses them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, TypeVar

from gpushare.contract import MANAGED_LABEL
from gpushare.defaults import SYSTEM_NAMESPACE
from gpushare.errors import ClusterError, GpuShareError
from gpushare.kube_client import ADMISSION_V1, CORE_V1, KubeClient, Object, find, path
from gpushare.raw_objects import mapping, objects, text

CONFIGURATION: Final = path(ADMISSION_V1, "mutatingwebhookconfigurations", "gpu-share")

SHARING: Final = f"{MANAGED_LABEL}=true"
"""Selects the pods with a share."""

T = TypeVar("T")


def optional(read: Callable[[], T]) -> T | None:
    """Read what the user may not be allowed to read, or what may be gone: ``None`` then."""
    try:
        return read()
    except ClusterError as error:
        if error.status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
            return None
        raise


def picked(value: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return what a value has of these keys."""
    return {key: value[key] for key in keys if key in value}


def sharing_pods(api: KubeClient, namespace: str = "") -> list[Object]:
    """List the pods with a share of a namespace (empty: of all), also those that have ended.

    Raises:
        ClusterError: the user may not list its pods, or the API server cannot be asked.
    """
    return api.list(path(CORE_V1, "pods", namespace=namespace), labelSelector=SHARING)[0]


def check_namespace(api: KubeClient, name: str) -> None:
    """Refuse a namespace that does not exist. Who may not look for it learns nothing.

    Raises:
        GpuShareError: there is none of that name.
    """
    with suppress(ClusterError):
        if find(api, path(CORE_V1, "namespaces", name)) is None:
            raise GpuShareError(f"there is no namespace {name}")


def release_namespace(api: KubeClient) -> str:
    """Return the namespace of the Service that the API server calls; the usual one while nothing names it."""
    for hook in objects(find(api, CONFIGURATION) or {}, "webhooks"):
        if named := text(mapping(mapping(hook, "clientConfig"), "service"), "namespace"):
            return named
    return SYSTEM_NAMESPACE
