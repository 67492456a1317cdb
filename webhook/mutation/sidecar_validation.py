"""Refuse a sidecar that another webhook, or a manifest, gave a right, another program or another GPU. Pure.

A tenant can create a pod with an init container of the sidecar's name. It has to meet the rules for a container without
a share. It also has to run the program of our image, without a token and without rights that the sidecar does not have.
"""

from typing import Final

from gpushare import contract
from gpushare.errors import Problem
from gpushare.fields import mapping, objects, strings
from gpushare.findings import Findings
from gpushare.host_access import normal, overlaps
from gpushare.quantity import quoted
from gpushare.reasons import Reason
from webhook.mutation import sidecar_image, sidecar_merge, sidecar_spec, validation
from webhook.mutation.podview import Container, Json, Kind, PodView
from webhook.mutation.settings import Settings

PROTECTED_PATHS: Final = (
    "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32",
    "/usr/lib64", "/usr/libexec", "/usr/local/bin", "/usr/local/sbin", "/usr/local/lib", "/opt/gpu-share", "/proc",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/run/gpu-share",
    contract.TOKEN_PATH,
)  # fmt: skip
"""What the sidecar's program is loaded from, where it finds its status, and where a token would be."""
_MAX_KEY: Final = 80
"""Of a name in a refusal, in characters."""
_UNCONFINED: Final = "unconfined"
_UNCONFINED_SELINUX: Final = ("spc_t", "unconfined_t", "unconfined_service_t")
_PROFILES: Final = ("RuntimeDefault", "Localhost")
_PROFILE_ANNOTATIONS: Final = (
    f"container.apparmor.security.beta.kubernetes.io/{contract.SIDECAR}",
    f"container.seccomp.security.alpha.kubernetes.io/{contract.SIDECAR}",
)
_FLAGS: Final = {
    "privileged": (False, "gives the sidecar access to all devices of the node"),
    "allowPrivilegeEscalation": (False, "lets the sidecar gain privileges"),
    "readOnlyRootFilesystem": (True, "lets the sidecar's program be replaced"),
    "runAsNonRoot": (True, "lets the sidecar run as root"),
}
"""Values that the sidecar has; ``null`` is renewed."""
_CHECKED: Final = frozenset({
    *_FLAGS, "appArmorProfile", "capabilities", "procMount", "runAsGroup", "runAsUser", "seLinuxOptions",
    "seccompProfile",
})  # fmt: skip
"""Keys of the security context with a known meaning. Another key may give rights."""


def check(findings: Findings, pod: PodView, settings: Settings) -> None:
    """Find all that is wrong with the container of the sidecar's name; nothing for a pod without one."""
    standing = pod.sidecar
    if standing is None:
        return
    if ours(pod, settings) is None:
        _foreign(findings, standing, settings.image)
        return
    changes = findings.through(_changed)
    _annotations(changes, pod)
    changes.attempt(_own, changes, standing, sidecar_spec.container(settings))
    rights = changes.through(_not_allowed)
    rights.warnings = []  # those about the container are given with those about the whole pod
    validation.validate_container(rights, standing)


def ours(pod: PodView, settings: Settings) -> Container | None:
    """Return the sidecar that a pod has already; it may have problems. ``None`` if only the name is the sidecar's."""
    standing = pod.sidecar
    if standing is None or standing.section != "initContainers":
        return None
    image = sidecar_image.parse(standing.raw.get("image"))
    return standing if image.name == sidecar_image.parse(settings.image).name else None


def _annotations(findings: Findings, pod: PodView) -> None:
    for key in _PROFILE_ANNOTATIONS:
        if str(pod.annotations.get(key)).lower() == _UNCONFINED:
            findings.problem(f"metadata.annotations[{key}]", f"{_UNCONFINED} removes the sidecar's security profile")


def _own(findings: Findings, standing: Container, wanted: Json) -> None:
    """Find what makes the container another than the sidecar of its release."""
    raw, field = standing.raw, standing.field
    if standing.kind is not Kind.SIDECAR:
        findings.problem(f"{field}.restartPolicy", "is not Always, so the container is not a native sidecar")
    if sidecar_merge.is_of_another_release(raw, wanted):
        raw = sidecar_merge.without_program(raw, field)
    findings.attempt(_program, findings, raw, field, wanted)
    findings.independent((_actions, _variables, _mounts, _rights, _capabilities, _profiles), raw, field)


def _program(findings: Findings, raw: Json, field: str, wanted: Json) -> None:
    if raw.get("command"):
        findings.problem(f"{field}.command", "starts a program other than gpu-share sidecar")
    if raw.get("args") and raw["args"] != wanted["args"]:
        findings.problem(f"{field}.args", "are not the sidecar's")
    if raw.get("workingDir"):
        findings.problem(f"{field}.workingDir", f"{_quoted(raw['workingDir'])} is not the sidecar's working directory")
    if raw.get("restartPolicyRules"):
        findings.problem(f"{field}.restartPolicyRules", "are not allowed in a native sidecar")
    claims = mapping(raw.get("resources"), f"{field}.resources").get("claims")
    if claims and claims != wanted["resources"]["claims"]:
        message = f"must be exactly the request {contract.SIDECAR!r} of the claim {contract.CLAIM!r}"
        findings.problem(f"{field}.resources.claims", message)


def _actions(findings: Findings, raw: Json, field: str) -> None:
    """Commands that the kubelet runs in the container."""
    for key in sidecar_merge.PROBES:
        if mapping(raw.get(key), f"{field}.{key}").get("exec"):
            findings.problem(f"{field}.{key}.exec", "runs a command other than gpu-share")
    hooks = mapping(raw.get("lifecycle"), f"{field}.lifecycle")
    for key in sidecar_merge.HOOKS:
        if mapping(hooks.get(key), f"{field}.lifecycle.{key}").get("exec"):
            findings.problem(f"{field}.lifecycle.{key}.exec", "runs a command other than gpu-share")


def _variables(findings: Findings, raw: Json, field: str) -> None:
    """A ConfigMap or a Secret can get any key later: only a prefix keeps it from setting a protected variable."""
    for entry in objects(raw.get("env"), f"{field}.env"):
        name = str(entry.get("name"))
        if sidecar_merge.is_protected(name) and not sidecar_merge.hides_gpus(entry):
            findings.problem(f"{field}.env[{_escaped(name)}]", "can change the sidecar's program or its visible GPUs")
    for index, entry in enumerate(objects(raw.get("envFrom"), f"{field}.envFrom")):
        prefix = entry.get("prefix") or ""
        if not isinstance(prefix, str) or sidecar_merge.can_be_protected(prefix):
            message = (
                "lets a ConfigMap or Secret set variables such as PATH or LD_PRELOAD in the sidecar; set a prefix "
                "such as APP_"
            )
            findings.problem(f"{field}.envFrom[{index}]", message)


def _mounts(findings: Findings, raw: Json, field: str) -> None:
    for index, mount in enumerate(objects(raw.get("volumeMounts"), f"{field}.volumeMounts")):
        path = mount.get("mountPath")
        ours = sidecar_merge.is_our_mount(mount) and not mount.get("subPath") and not mount.get("subPathExpr")
        if not ours and overlaps(normal(path), PROTECTED_PATHS):
            message = f"{_quoted(path)} hides the sidecar's program, its status file or a token folder"
            findings.problem(f"{field}.volumeMounts[{index}].mountPath", message)
    if raw.get("volumeDevices"):
        findings.problem(f"{field}.volumeDevices", "gives the sidecar a device")


def _rights(findings: Findings, raw: Json, field: str) -> None:
    field = f"{field}.securityContext"
    context = mapping(raw.get("securityContext"), field)
    for key, (wanted, why) in _FLAGS.items():
        if context.get(key) is not None and context[key] is not wanted:
            findings.problem(f"{field}.{key}", f"{_quoted(context[key])} {why}")
    user = context.get("runAsUser")
    if user is not None and (isinstance(user, bool) or not isinstance(user, int) or user == 0):
        findings.problem(f"{field}.runAsUser", f"{_quoted(user)} lets the sidecar run as root")
    for key, value in context.items():
        if value and key not in _CHECKED:
            findings.problem(f"{field}.{_escaped(str(key))}", "can give the sidecar a privilege")


def _capabilities(findings: Findings, raw: Json, field: str) -> None:
    field = f"{field}.securityContext.capabilities"
    context = mapping(raw.get("securityContext"), field.rpartition(".")[0])
    added = strings(mapping(context.get("capabilities"), field).get("add"), f"{field}.add")
    if added:
        findings.problem(f"{field}.add", f"{_quoted(added[0])} gives the sidecar a capability")


def _profiles(findings: Findings, raw: Json, field: str) -> None:
    field = f"{field}.securityContext"
    context = mapping(raw.get("securityContext"), field)
    if context.get("procMount") not in (None, "Default"):
        findings.problem(f"{field}.procMount", f"{_quoted(context['procMount'])} shows the sidecar more of /proc")
    for key in ("seccompProfile", "appArmorProfile"):
        profile = mapping(context.get(key), f"{field}.{key}")
        if profile and profile.get("type") not in _PROFILES:
            findings.problem(f"{field}.{key}", f"{_quoted(profile.get('type'))} removes the sidecar's security profile")
    options = mapping(context.get("seLinuxOptions"), f"{field}.seLinuxOptions")
    if options.get("type") in _UNCONFINED_SELINUX:
        findings.problem(f"{field}.seLinuxOptions.type", f"{_quoted(options['type'])} is not confined")


def _foreign(findings: Findings, standing: Container, image: str) -> None:
    name = f"only gpu-share's sidecar (image {quoted(image)}) may have the name {contract.SIDECAR!r}"
    hint = "if this is your container, rename it; if another webhook changed the sidecar, exclude container "
    field = "name" if standing.section != "initContainers" else "image"
    message = f"{name}; {hint}{contract.SIDECAR!r} there"
    findings.problem(f"{standing.field}.{field}", message, Reason.RESERVED_NAME)


def _changed(found: Problem) -> Problem:
    if found.reason in {Reason.INVALID_POD, Reason.TOO_LARGE}:
        return found
    hint = (
        "another webhook, or the pod's manifest, changed the sidecar: remove the change, or exclude "
        f"container {contract.SIDECAR!r} in the configuration of that webhook"
    )
    return Problem(found.field, f"{found.message}; {hint}", Reason.RESERVED_NAME)


def _not_allowed(found: Problem) -> Problem:
    """Say so of what no container of a sharing pod may have."""
    return found if found.reason is Reason.INVALID_POD else Problem(found.field, "is not allowed in the sidecar")


def _quoted(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value if isinstance(value, str) else ascii(value))


def _escaped(key: str) -> str:
    return ascii(key[:_MAX_KEY])[1:-1]
