"""Renew the sidecar that a pod already has, in place. Pure.

Fields of ours are renewed; what other webhooks added stays: a digest, a registry, a stricter security context, ports.
Of a sidecar of another release, whatever only that release can have written is ours as well. ``sidecar_validation``
refuses before what must not stay, so a sidecar that was merged once is not changed by merging it again.
"""

from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.fields import mapping, objects, strings
from gpushare.host_access import normal
from webhook.mutation import sidecar_image

Json = Mapping[str, Any]
Object = dict[str, Any]
PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
HOOKS: Final = ("postStart", "preStop")
HIDING: Final = frozenset({contract.CUDA_VISIBLE_DEVICES, contract.NVIDIA_VISIBLE_DEVICES})
"""Variables that the webhook writes into each container."""
NO_GPU: Final = frozenset({"", "-1", "none", "void"})
"""Values of them by which a container sees no GPU; other GPU systems write them too, and ours replaces them."""
ALL_CAPABILITIES: Final = "ALL"
_PROGRAM: Final = ("PYTHON", "LD_", "GPU_SHARE_", "CUDA_", "NVIDIA_")
_VOLUMES: Final = f"{contract.CLAIM}-"
"""Prefix of the names of our volumes."""


def is_protected(name: str) -> bool:
    """Tell whether a variable changes what the sidecar's program does, or which GPU it sees."""
    return name == "PATH" or name.startswith(_PROGRAM)


def can_be_protected(prefix: str) -> bool:
    """Tell whether a variable whose name begins with this prefix, and goes on in any way, can be a protected one."""
    return is_protected(prefix) or any(each.startswith(prefix) for each in ("PATH", *_PROGRAM))


def is_of_another_release(standing: Json, wanted: Json) -> bool:
    """Tell whether another release wrote a sidecar: by the image, else by command, arguments and start-up probe."""
    before, ours = sidecar_image.parse(standing.get("image")), sidecar_image.parse(wanted["image"])
    same = sidecar_image.same_release(before, ours)
    return not _same_program(standing, wanted) if same is None else not same


def hides_gpus(variable: Json) -> bool:
    """Tell whether an entry of ``env`` hides the GPUs, as ours do."""
    value = variable.get("value") or ""
    return variable["name"] in HIDING and not variable.get("valueFrom") and isinstance(value, str) and value in NO_GPU


def is_our_mount(mount: Json) -> bool:
    """Tell whether a mount is the empty volume in place of a token."""
    return mount.get("name") == contract.NO_TOKEN_VOLUME and normal(mount.get("mountPath")) == normal(
        contract.TOKEN_PATH
    )


def merged(standing: Json, wanted: Json, field: str) -> Json:
    """Return the sidecar of a pod that has one already; the same object if nothing of it has to change.

    Args:
        standing: as it is in the pod, without GPU.
        wanted: what this release writes into a pod that has none.
        field: path of ``standing``.
    """
    other = is_of_another_release(standing, wanted)
    after = dict(without_program(standing, field) if other else standing)
    after |= {
        "image": wanted["image"] if other else sidecar_image.renewed(str(standing.get("image")), wanted["image"]),
        "imagePullPolicy": _pull_policy(standing.get("imagePullPolicy"), wanted["imagePullPolicy"], other=other),
        "args": wanted["args"],
        "restartPolicy": wanted["restartPolicy"],
        "resources": _resources(after, wanted["resources"], f"{field}.resources", renew=other),
        "securityContext": _security(after, wanted["securityContext"], f"{field}.securityContext"),
        "volumeMounts": _mounts(after, wanted["volumeMounts"], f"{field}.volumeMounts"),
    }
    return standing if after == standing else after


def without_program(standing: Json, field: str) -> Json:
    """Leave out what another release may have written for its own program; ours runs and reads nothing of it."""
    after = {key: value for key, value in standing.items() if key not in {"command", "args", "workingDir"}}
    for key in PROBES:
        if mapping(after.get(key), f"{field}.{key}").get("exec"):
            del after[key]
    hooks = mapping(after.get("lifecycle"), f"{field}.lifecycle")
    if any(mapping(hooks.get(each), f"{field}.lifecycle.{each}").get("exec") for each in HOOKS):
        del after["lifecycle"]
    env, mounts = objects(after.get("env"), f"{field}.env"), objects(after.get("volumeMounts"), f"{field}.volumeMounts")
    after["env"] = [each for each in env if _may_stay(str(each.get("name")))]
    after["volumeMounts"] = [each for each in mounts if not str(each.get("name")).startswith(_VOLUMES)]
    resources = mapping(after.get("resources"), f"{field}.resources")
    return {**after, "resources": {key: value for key, value in resources.items() if key != "claims"}}


def _may_stay(variable: str) -> bool:
    return variable in HIDING or not is_protected(variable)


def _same_program(standing: Json, wanted: Json) -> bool:
    probe = standing.get("startupProbe")
    return (
        not standing.get("command")
        and (standing.get("args") or wanted["args"]) == wanted["args"]
        and not (isinstance(probe, dict) and probe.get("exec"))
    )


def _pull_policy(standing: object, wanted: str, *, other: bool) -> object:
    """Keep what others wrote; of another release, which may have had another policy, only the strictest one."""
    return wanted if not standing or (other and standing != "Always") else standing


def _resources(container: Json, wanted: Json, field: str, *, renew: bool) -> Object:
    """Amounts may be changed by others; those of another release are renewed. The claim is always ours."""
    standing = mapping(container.get("resources"), field)
    amounts = {
        key: {**mapping(standing.get(key), f"{field}.{key}"), **wanted[key]}
        for key in ("requests", "limits")
        if renew and key in wanted
    }
    return {**standing, **amounts, "claims": wanted["claims"]}


def _security(container: Json, wanted: Json, field: str) -> Object:
    standing = mapping(container.get("securityContext"), field)
    missing = {key: value for key, value in wanted.items() if standing.get(key) in (None, {})}
    capabilities = mapping(standing.get("capabilities"), f"{field}.capabilities")
    drop = strings(capabilities.get("drop"), f"{field}.capabilities.drop")
    if ALL_CAPABILITIES not in drop:
        missing["capabilities"] = {**capabilities, "drop": [*drop, ALL_CAPABILITIES]}
    return {**standing, **missing}


def _mounts(container: Json, wanted: list[Object], field: str) -> list[Object]:
    """Put ours where it is, or at the end; what others mount stays."""
    mounts = [wanted[0] if is_our_mount(each) else each for each in objects(container.get("volumeMounts"), field)]
    return mounts if wanted[0] in mounts else [*mounts, *wanted]
