"""What is kept in memory of objects that tenants write: the fields that pages read of lists. Pure.

A pod or an Event may have a megabyte, and there may be any number. What explains one pod is read by its name.
"""

from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.raw_objects import mapping, objects

MAX_MESSAGE: Final = 1024
Object = dict[str, Any]
OF_METADATA: Final = (
    "namespace", "name", "uid", "labels", "ownerReferences", "resourceVersion", "deletionTimestamp",
)  # fmt: skip
OF_EVENTS: Final = (
    "involvedObject", "reason", "action", "type", "reportingComponent", "reportingInstance", "eventTime",
    "lastTimestamp",
)  # fmt: skip
OF_PODS: Final = ("nodeName", "resourceClaims")
OF_POD_STATUS: Final = ("phase", "startTime", "containerStatuses", "initContainerStatuses", "resourceClaimStatuses")
OF_CONTAINERS: Final = ("name", "resources", "restartPolicy")
DROPPED: Final = {"metadata": ("managedFields",), "status": ("images",)}
"""Of objects that no tenant writes."""


def slim(kind: str, item: Object) -> Object:
    """Return what is kept of an object of a followed kind."""
    if kind == "pods":
        return _pod(item)
    if kind == "resourceclaims":
        return {"metadata": _kept(item["metadata"], OF_METADATA), "status": item.get("status")}
    if kind == "events":
        message = {"message": str(item.get("message"))[:MAX_MESSAGE]}
        return {"metadata": _kept(item["metadata"], OF_METADATA), **_kept(item, OF_EVENTS), **message}
    return {
        key: {k: v for k, v in value.items() if k not in DROPPED.get(key, ())} if isinstance(value, dict) else value
        for key, value in item.items()
    }


def _pod(item: Object) -> Object:
    spec, written = mapping(item, "spec"), mapping(mapping(item, "metadata"), "annotations")
    ours = {key: value for key, value in written.items() if contract.GROUP in key or key == contract.DEFAULT_CONTAINER}
    containers = {
        key: [_kept(each, OF_CONTAINERS) for each in objects(spec, key)] for key in ("initContainers", "containers")
    }
    return {
        "metadata": {**_kept(item["metadata"], OF_METADATA), "annotations": ours},
        "spec": {**_kept(spec, OF_PODS), **containers},
        "status": _kept(mapping(item, "status"), OF_POD_STATUS),
    }


def _kept(value: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value[key] for key in keys if key in value}
