"""Build the sidecar container and volume of a sharing pod. Pure.

A native sidecar that passes Pod Security ``restricted``, holds no token and no GPU, and is trusted by nobody.
"""

from typing import Any, Final

from gpushare import contract
from webhook.mutation.settings import Settings

Object = dict[str, Any]
USER: Final = 65532
STATUS: Final = f"{contract.STATUS_PATH}/status.json"
"""What the enforcer says about the pod: ``sidecar/pod_status.py`` describes it."""
PROBE: Final = """\
for pause in 0 0.3 0.7 1 2 3; do
  sleep $pause
  grep -qs '"ready": *true' "$0" && exit
done
why=$(grep -os '"waiting": *"[^"]*' "$0")
why=${why#*: *\\"}
echo "the share of the GPU is not ready: ${why:-the enforcer has not written a status yet}"
exit 1
"""
"""The start-up probe: 0 once the status file says ready, 1 with a sentence when it has not for seven seconds.

A shell's few milliseconds: Python's start, for thirty pods at once, holds up a node. It waits by itself, because what a
runtime does to start it costs twenty times as much as what it does, and because a share is ready within a second. It
looks ever more rarely: where many wait, it is because the node is busy.

Inside a text of the file a quote has a backslash before it, so that nothing but the key itself reads ``"ready":``.
"""
_EMPTY_SIZE: Final = "1Mi"


def container(
    settings: Settings, *, guaranteed: bool = False, budgeted: bool = False, unconfined: bool = False
) -> Object:
    """Build the sidecar.

    Args:
        settings: image and amounts.
        guaranteed: asks for its limits outright, so that the pod keeps its class.
        budgeted: asks for nothing of its own: ``spec.resources`` has fixed what the whole pod gets.
        unconfined: the pod has no AppArmor profile by its own wish, which the sidecar does not inherit.
    """
    profile = {"appArmorProfile": {"type": "RuntimeDefault"}} if unconfined else {}
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
            **profile,
        },
        "volumeMounts": [{"name": contract.NO_TOKEN_VOLUME, "mountPath": contract.TOKEN_PATH, "readOnly": True}],
    }


def volume() -> Object:
    """Build the empty volume that stands where the API server would otherwise mount a token."""
    return {"name": contract.NO_TOKEN_VOLUME, "emptyDir": {"sizeLimit": _EMPTY_SIZE}}
