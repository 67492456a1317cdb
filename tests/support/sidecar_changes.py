"""Changes that another webhook may make to the sidecar of a rewritten pod, each with what has to become of the pod.

One table for two tests: the rewriting alone (``tests/unit/webhook/mutation/test_sidecar_changes.py``), and a second
webhook on a real API server (``tests/integration/controlplane/test_sidecar_changes.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

Object = dict[str, Any]
DIGEST: Final = "sha256:" + "0123456789abcdef" * 4
TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
VOLUMES: Final = [{"name": "data", "emptyDir": {}}, {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
"""Of the pod: what the changes mount."""
RENEWED: Final = "renewed"
"""The pod is admitted, and the field is ours again."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change. ``at`` is the path below the sidecar, or below the pod if it begins with ``/``.

    ``value`` replaces what is there; ``more`` is appended to a list. ``refused`` is the field, below the sidecar, that
    the refusal has to name; empty where the pod is admitted with the change, or with what ``becomes`` of the field.
    """

    name: str
    at: Sequence[str]
    value: Any = None
    more: Any = None
    refused: str = ""
    becomes: Any = None

    def apply(self, pod: Object) -> Object:
        """Change a rewritten pod, in place; returns it."""
        steps = list(self.at)
        target: Any = pod if steps[0] == "/" else sidecar(pod)
        *steps, last = steps[1:] if steps[0] == "/" else steps
        for step in steps:
            target = target.setdefault(step, {})
        target[last] = self.value if self.more is None else [*target.get(last, []), self.more]
        return pod

    def found(self, pod: Object) -> Any:
        """Read the field again from what was admitted."""
        value: Any = pod if self.at[0] == "/" else sidecar(pod)
        for step in self.at[1:] if self.at[0] == "/" else self.at:
            value = value.get(step, {})
        return value

    def stands(self, pod: Object) -> bool:
        """Tell whether an admitted pod has the field as it should; the API server may have added defaults."""
        value = self.found(pod)
        if self.becomes is not None:
            return _within(self.becomes, value)
        if self.more is not None:
            return any(_within(self.more, each) for each in value)
        return _within(self.value, value)


def sidecar(pod: Object) -> Object:
    """Find the sidecar of a rewritten pod."""
    return next(each for each in pod["spec"]["initContainers"] if each["name"] == "gpu-share")


def _within(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_within(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return all(map(_within, wanted, found))
    return bool(wanted == found) or (wanted == "" and found is None)


def _variable(name: str, value: str = "x") -> Object:
    return {"name": name, "value": value}


def _mount(path: str, name: str = "data") -> Object:
    return {"name": name, "mountPath": path}


def _security(*at: str) -> Sequence[str]:
    return ("securityContext", *at)


_HTTP: Final = {"httpGet": {"path": "/metrics", "port": 9403}}
_EXEC: Final = {"exec": {"command": ["sh", "-c", "true"]}}
_HIDDEN: Final = [{"name": "CUDA_VISIBLE_DEVICES", "value": ""}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/gpu-share"

ADMITTED: Final = (
    Change(name="digest-behind-the-tag", at=("image",), value=f"gpu-share:0.1.0@{DIGEST}"),
    Change(name="digest-for-the-tag", at=("image",), value=f"gpu-share@{DIGEST}"),
    Change(name="registry-in-front", at=("image",), value="mirror.example:5000/hub/gpu-share:0.1.0"),
    Change(name="registry-and-digest", at=("image",), value=f"mirror.example/gpu-share:0.1.0@{DIGEST}"),
    Change(name="tag-of-another-release", at=("image",), value=f"gpu-share:0.0.9@{DIGEST}", becomes="gpu-share:0.1.0"),
    Change(name="pull-policy", at=("imagePullPolicy",), value="Always"),
    Change(name="ports", at=("ports",), more={"name": "metrics", "containerPort": 9403}),
    Change(name="resize-policy", at=("resizePolicy",), more={"resourceName": "cpu", "restartPolicy": "NotRequired"}),
    Change(name="amounts", at=("resources", "limits"), value={"cpu": "1", "memory": "256Mi"}),
    Change(name="tty", at=("tty",), value=True),
    Change(name="liveness-by-http", at=("livenessProbe",), value=_HTTP),
    Change(name="readiness-by-tcp", at=("readinessProbe",), value={"tcpSocket": {"port": 9403}}),
    Change(name="pre-stop-sleep", at=("lifecycle",), value={"preStop": {"sleep": {"seconds": 1}}}),
    Change(name="drop-more", at=_security("capabilities", "drop"), more="NET_RAW"),
    Change(
        name="drop-less",
        at=_security("capabilities", "drop"),
        value=["NET_RAW"],
        becomes=["NET_RAW", "ALL"],
    ),
    Change(name="group", at=_security("runAsGroup"), value=1000),
    Change(name="another-user", at=_security("runAsUser"), value=1000660000),
    Change(name="no-user", at=_security("runAsUser"), value=None, becomes=65532),
    Change(name="seccomp-localhost", at=_security("seccompProfile"), value={
        "type": "Localhost", "localhostProfile": "profiles/strict.json"}),
    Change(name="selinux-level", at=_security("seLinuxOptions"), value={"level": "s0:c123,c456"}),
    Change(name="apparmor-default", at=_security("appArmorProfile"), value={"type": "RuntimeDefault"}),
    Change(name="proc-mount-default", at=_security("procMount"), value="Default"),
    Change(name="proxy-variable", at=("env",), more=_variable("HTTPS_PROXY", "http://proxy:3128")),
    Change(name="sees-no-gpu", at=("env",), more=_variable("NVIDIA_VISIBLE_DEVICES", "none"), becomes=_HIDDEN),
    Change(name="env-from-with-prefix", at=("envFrom",), more={
        "prefix": "APP_", "configMapRef": {"name": "settings", "optional": True}}),
    Change(name="certificates", at=("volumeMounts",), more=_mount("/etc/ssl/certs")),
)  # fmt: skip
REFUSED: Final = (
    Change(name="another-repository", at=("image",), value="example.org/miner:0.1.0", refused="image"),
    Change(name="plain-init-container", at=("restartPolicy",), value=None, refused="restartPolicy"),
    Change(name="sees-all-gpus", at=("env",), more=_variable("NVIDIA_VISIBLE_DEVICES", "all"),
        refused="env[NVIDIA_VISIBLE_DEVICES]"),
    Change(name="sees-one-gpu", at=("env",), more=_variable("CUDA_VISIBLE_DEVICES", "0"),
        refused="env[CUDA_VISIBLE_DEVICES]"),
    Change(name="command", at=("command",), value=["/bin/sh"], refused="command"),
    Change(name="arguments", at=("args",), value=["sidecar", "--status=/data"], refused="args"),
    Change(name="working-folder", at=("workingDir",), value="/data", refused="workingDir"),
    Change(name="liveness-by-command", at=("livenessProbe",), value=_EXEC, refused="livenessProbe.exec"),
    Change(name="startup-by-command", at=("startupProbe",), value=_EXEC, refused="startupProbe.exec"),
    Change(name="pre-stop-command", at=("lifecycle",), value={"preStop": _EXEC}, refused="lifecycle.preStop.exec"),
    Change(name="post-start-command", at=("lifecycle",), value={"postStart": _EXEC},
           refused="lifecycle.postStart.exec"),
    Change(name="over-the-program", at=("volumeMounts",), more=_mount("/opt/gpu-share/lib"),
           refused="volumeMounts[1].mountPath"),
    Change(name="over-python", at=("volumeMounts",), more=_mount("/usr//local/./lib/python3.12/site-packages"),
           refused="volumeMounts[1].mountPath"),
    Change(name="over-the-status", at=("volumeMounts",), more=_mount("/var/run/gpu-share/status"),
           refused="volumeMounts[1].mountPath"),
    Change(name="around-the-token", at=("volumeMounts",), more=_mount("/var/run/secrets"),
           refused="volumeMounts[1].mountPath"),
    Change(name="token", at=("volumeMounts",), value=[_mount(TOKEN)], refused="volumeMounts[0].mountPath"),
    Change(name="preloaded-library", at=("volumeMounts",), more=_mount("/etc/ld.so.preload"),
           refused="volumeMounts[1].mountPath"),
    Change(name="block-device", at=("volumeDevices",), more={"name": "disk", "devicePath": "/dev/xvda"},
           refused="volumeDevices"),
    Change(name="python-path", at=("env",), more=_variable("PYTHONPATH", "/data"), refused="env[PYTHONPATH]"),
    Change(name="preload", at=("env",), more=_variable("LD_PRELOAD", "/data/x.so"), refused="env[LD_PRELOAD]"),
    Change(name="path", at=("env",), more=_variable("PATH", "/data"), refused="env[PATH]"),
    Change(name="our-variable", at=("env",), more=_variable("GPU_SHARE_IMAGE"), refused="env[GPU_SHARE_IMAGE]"),
    Change(name="cuda-variable", at=("env",), more=_variable("CUDA_MPS_PIPE_DIRECTORY", "/data"),
           refused="env[CUDA_MPS_PIPE_DIRECTORY]"),
    Change(name="nvidia-variable", at=("env",), more=_variable("NVIDIA_DRIVER_CAPABILITIES", "all"),
           refused="env[NVIDIA_DRIVER_CAPABILITIES]"),
    Change(name="env-from", at=("envFrom",), more={"configMapRef": {"name": "settings"}}, refused="envFrom[0]"),
    Change(name="env-from-with-half-a-name", at=("envFrom",), more={
        "prefix": "LD", "secretRef": {"name": "settings"}}, refused="envFrom[0]"),
    Change(name="privileged", at=_security("privileged"), value=True, refused="securityContext.privileged"),
    Change(name="escalation", at=_security("allowPrivilegeEscalation"), value=True,
           refused="securityContext.allowPrivilegeEscalation"),
    Change(name="capability", at=_security("capabilities", "add"), value=["NET_ADMIN"],
           refused="securityContext.capabilities.add"),
    Change(name="root", at=_security("runAsUser"), value=0, refused="securityContext.runAsUser"),
    Change(name="perhaps-root", at=_security("runAsNonRoot"), value=False, refused="securityContext.runAsNonRoot"),
    Change(name="writable-root-file-system", at=_security("readOnlyRootFilesystem"), value=False,
           refused="securityContext.readOnlyRootFilesystem"),
    Change(name="seccomp-unconfined", at=_security("seccompProfile"), value={"type": "Unconfined"},
           refused="securityContext.seccompProfile"),
    Change(name="apparmor-unconfined", at=_security("appArmorProfile"), value={"type": "Unconfined"},
           refused="securityContext.appArmorProfile"),
    Change(name="apparmor-unconfined-by-annotation", at=("/", "metadata", "annotations", _APPARMOR),
           value="unconfined", refused="metadata.annotations"),
    Change(name="selinux-unconfined", at=_security("seLinuxOptions"), value={"type": "spc_t"},
           refused="securityContext.seLinuxOptions.type"),
    Change(name="proc-mount", at=_security("procMount"), value="Unmasked", refused="securityContext.procMount"),
    Change(name="request-of-a-container", at=("resources", "claims"), value=[{"name": "gpu-share", "request": "main"}],
           refused="resources.claims"),
    Change(name="whole-gpu", at=("resources", "limits"), value={"nvidia.com/gpu": "1"},
           refused="resources.limits[nvidia.com/gpu]"),
)  # fmt: skip
TABLE: Final = (*ADMITTED, *REFUSED)
BY_NAME: Final = {each.name: each for each in TABLE}
