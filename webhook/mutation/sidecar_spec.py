"""The sidecar container and volume of a sharing pod, and how to recognise them. Pure.

A native sidecar that passes Pod Security ``restricted``, holds no token and no GPU, and is trusted by nobody.
"""

from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract
from webhook.mutation.podview import Container, Json, Kind
from webhook.mutation.settings import Settings

Object = dict[str, Any]
USER: Final = 65532
STATUS: Final = f"{contract.STATUS_PATH}/status.json"
"""What the node agent says about the pod: ``sidecar/pod_status.py`` describes it."""
PROBE: Final = """\
for pause in 0 0.3 0.7 1 2 3; do
  sleep $pause
  grep -qs '"ready": *true' "$0" && exit
done
why=$(grep -os '"waiting": *"[^"]*' "$0")
why=${why#*: *\\"}
echo "the share of the GPU is not ready: ${why:-the node agent has not said anything yet}"
exit 1
"""
"""The start-up probe: 0 once the status file says ready, 1 with a sentence when it has not for seven seconds.

A shell's few milliseconds: Python's start, for thirty pods at once, holds up a node. It waits by itself, because what a
runtime does to start it costs twenty times as much as what it does, and because a share is ready within a second. It
looks ever more rarely: where many wait, it is because the node is busy.

Inside a text of the file a quote has a backslash before it, so that nothing but the key itself reads ``"ready":``.
"""
_EMPTY_SIZE: Final = "1Mi"
_FREE: Final = frozenset({"imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy", "env", "envFrom"})
"""What the API server and other webhooks may add or change: none of it gives the sidecar more than it has.

Variables are among it because those that would hand it a GPU are hidden as in every other container.
"""


def container(settings: Settings, *, guaranteed: bool = False, budgeted: bool = False) -> Object:
    """Build the sidecar.

    Args:
        settings: image and amounts.
        guaranteed: asks for its limits outright, so that the pod keeps its class.
        budgeted: asks for nothing of its own: ``spec.resources`` has fixed what the whole pod gets.
    """
    requests = settings.sidecar_limits if guaranteed else settings.sidecar_requests
    amounts = {} if budgeted else {"requests": dict(requests), "limits": dict(settings.sidecar_limits)}
    return {
        "name": contract.SIDECAR,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["sidecar"],
        "restartPolicy": "Always",
        "env": [
            {"name": contract.CUDA_VISIBLE_DEVICES, "value": contract.NO_CUDA_DEVICE},
            {"name": contract.NVIDIA_VISIBLE_DEVICES, "value": contract.NO_NVIDIA_DEVICE},
        ],
        "startupProbe": {
            "exec": {"command": ["sh", "-c", PROBE, STATUS]},
            "periodSeconds": 2,
            "timeoutSeconds": 15,
            "failureThreshold": 45,
        },
        "resources": {**amounts, "claims": [{"name": contract.CLAIM, "request": contract.SIDECAR}]},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": contract.NO_TOKEN_VOLUME, "mountPath": contract.TOKEN_PATH, "readOnly": True}],
    }


def volume() -> Object:
    """Build the empty volume that stands where the API server would otherwise mount a token."""
    return {"name": contract.NO_TOKEN_VOLUME, "emptyDir": {"sizeLimit": _EMPTY_SIZE}}


def difference(standing: Container, wanted: Json) -> str | None:
    """Compare a container of the sidecar's name with the sidecar; return the field that tells them apart."""
    if standing.kind is not Kind.SIDECAR:
        return f"it stands in {standing.field}"
    for key in sorted(standing.raw.keys() | wanted.keys()):
        if key not in _FREE and not _COMPARED.get(key, _same)(standing.raw.get(key), wanted.get(key)):
            return f"its {key} differs"
    return None


def _same(standing: Any, wanted: Any) -> bool:
    return bool(standing == wanted) or (not standing and not wanted)


def _same_probe(standing: Any, wanted: Any) -> bool:
    """The API server adds defaults to a probe; whatever else is added delays our own start at worst."""
    return isinstance(standing, Mapping) and standing.get("exec") == wanted["exec"]


def _same_resources(standing: Any, wanted: Any) -> bool:
    """Amounts of CPU and memory may be changed by others; the claim may not."""
    return isinstance(standing, Mapping) and standing.get("claims") == wanted["claims"]


def _same_security(standing: Any, wanted: Any) -> bool:
    """No key of ours changed; a key added only where it takes away, such as ``privileged: false``."""
    if not isinstance(standing, Mapping) or any(standing.get(key) != value for key, value in wanted.items()):
        return False
    return all(key in wanted or not value for key, value in standing.items())


def _same_image(standing: Any, wanted: Any) -> bool:
    """A mirror of the registry is the same image; whoever names it so lies to themselves alone."""
    return isinstance(standing, str) and standing.rpartition("/")[2] == wanted.rpartition("/")[2]


def _same_mounts(standing: Any, wanted: Any) -> bool:
    """Ours are there; others add theirs to every container, and what the pod mounts elsewhere it may mount here."""
    return isinstance(standing, list) and all(each in standing for each in wanted)


_COMPARED: Final = {
    "image": _same_image,
    "resources": _same_resources,
    "securityContext": _same_security,
    "startupProbe": _same_probe,
    "volumeMounts": _same_mounts,
}
