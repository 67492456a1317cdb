"""Build the sidecar container and volume of a sharing pod. Pure.

A native sidecar that passes Pod Security ``restricted``, holds no token and no GPU, and is trusted by nobody. It has no
probe: the kubelet creates no container before the driver has prepared the pod's claim, and the driver waits until the
claim's GPUs take clients and are watched.
"""

from typing import Any, Final

from gpushare import contract
from webhook.mutation.settings import Settings

Object = dict[str, Any]
USER: Final = 65532
_EMPTY_SIZE: Final = "1Mi"


def container(
    settings: Settings, *, guaranteed: bool = False, budgeted: bool = False, unconfined: bool = False
) -> Object:
    """Build the sidecar.

    Args:
        settings: image and amounts.
        guaranteed: asks for its limits outright, so that the pod keeps its class.
        budgeted: asks for nothing of its own: ``spec.resources`` has fixed what the whole pod gets.
        unconfined: the pod asks for no AppArmor profile, which the sidecar does not inherit.
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
