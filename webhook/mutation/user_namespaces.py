"""Give pods that may run as root a user namespace of their own: root in it is an unprivileged user of the node. Pure.

The control socket of MPS obeys root of the node alone (docs/design/hardware.md, H3 and userns).
"""

from collections.abc import Collection
from typing import Any, Final

from gpushare.fields import boolean, objects
from gpushare.host_access import SECTIONS
from webhook.mutation.podview import Container, Json, PodView

MAPPABLE: Final = frozenset({"configMap", "downwardAPI", "emptyDir", "projected", "secret"})
"""Volumes on the node's own disk. Others, such as NFS, may not be mounted with mapped owners: no container starts."""


def may_run_as_root(pod: PodView, sharing: Collection[str]) -> list[str]:
    """Return the sharing containers for which nothing says that they do not; what the image says is invisible here."""
    return [one.name for one in pod.containers if one.name in sharing and _perhaps_root(one, pod.security)]


def effective(container: Container, outer: Json, key: str) -> tuple[Any, str]:
    """Return what holds for a container, and the field that says so: its own context wins over the pod's."""
    if container.security.get(key) is not None:
        return container.security[key], f"{container.field}.securityContext.{key}"
    return outer.get(key), f"spec.securityContext.{key}"


def isolated(pod: PodView) -> bool:
    """Tell whether the pod has a user namespace of its own already."""
    return pod.spec.get("hostUsers") is False


def hindrance(pod: PodView) -> str:
    """Return the field for which the pod cannot have a user namespace of its own; empty where it can."""
    spec = pod.spec
    for flag in ("hostUsers", "hostNetwork", "hostPID", "hostIPC"):
        if boolean(spec.get(flag), f"spec.{flag}"):
            return f"spec.{flag}"
    for index, volume in enumerate(objects(spec.get("volumes"), "spec.volumes")):
        if not {key for key, value in volume.items() if value is not None} <= MAPPABLE | {"name"}:
            return f"spec.volumes[{index}]"
    for section in SECTIONS:
        for index, container in enumerate(objects(spec.get(section), f"spec.{section}")):
            if container.get("volumeDevices"):
                return f"spec.{section}[{index}].volumeDevices"
    return ""


def _perhaps_root(container: Container, outer: Json) -> bool:
    return not (effective(container, outer, "runAsNonRoot")[0] or effective(container, outer, "runAsUser")[0])
