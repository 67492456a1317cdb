"""What cannot stand beside a share, in the spellings that a simple comparison would miss."""

from typing import Any

import pytest

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.fields import MAX_ENTRIES
from gpushare.findings import collect
from gpushare.host_access import CAPABILITIES, HostAccess, check, normal
from gpushare.namespace_policy import NamespacePolicy
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.podview import MAX_ANNOTATIONS, read_annotations
from webhook.mutation.settings import Settings

Json = dict[str, Any]
LONG = "0" * 60_000 + "1"


def answered(container: Json, spec: Json | None = None, **review: Any) -> tuple[str, ...]:
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi", contract.DEFAULT_CONTAINER: "model"}}
    containers = [{"name": "model", "image": "a"}, {"name": "other", "image": "a", **container}]
    whole = {"securityContext": {"runAsNonRoot": True}, "containers": containers, **(spec or {})}
    pod = {"metadata": metadata, "spec": whole}
    return mutate_pod(pod, policy=NamespacePolicy(), settings=Settings(), **review).warnings


@pytest.mark.parametrize(
    "value",
    ["1", "01", "1k", "0.5", "1e3", "-1", "x", "", "\u0660", " 0", "0x0", LONG, 1, 0.5, True, [], {}],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.parametrize("part", ["limits", "requests"])
@pytest.mark.parametrize("key", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
def test_a_whole_gpu_beside_a_share_is_refused(value: object, part: str, key: str) -> None:
    with pytest.raises(PolicyDenied, match="whole GPU"):
        answered({"resources": {part: {key: value}}})


@pytest.mark.parametrize(
    "value", [0, "0", "0k", "00", "0.0", "0e3", "+0", "-0", ".0", "0.", "0Ki", "-.0", None], ids=repr
)
def test_no_whole_gpu_stays_with_one_warning(value: object) -> None:
    resources = {"limits": {"nvidia.com/gpu": value}, "requests": {"nvidia.com/gpu": value}}
    assert answered({"resources": resources}) == (
        "nvidia.com/gpu: 0 of container other has no effect in a pod with a share",
    )


@pytest.mark.parametrize(
    "key", ["cpu", "nvidia.com/rdma", "nvidia.com/gpumemory", "amd.com/gpu", "example.com/nvidia.com"]
)
def test_other_resources_are_none_of_our_business(key: str) -> None:
    assert answered({"resources": {"limits": {key: "1"}}}) == ()


@pytest.mark.parametrize(
    "path",
    [
        "/dev", "/dev/", "//dev", "/dev/.", "/dev/nvidia0", "//dev//nvidia0", "/dev/./nvidiactl",
        "/dev/shm/../nvidia-uvm", "/./dev/nvidia-caps", "/x/../dev/nvidia-modeset", "dev/nvidia0",
        "/dev/dri", "/dev/dri/renderD128", "/dev/char/195:0", "/" + "a" * 5000,
    ],
)  # fmt: skip
def test_a_host_path_to_gpus_is_refused_however_it_is_spelled(path: str) -> None:
    with pytest.raises(PolicyDenied, match=r"spec\.volumes\[1\]\.hostPath\.path"):
        answered({}, {"volumes": [{"name": "a"}, {"name": "b", "hostPath": {"path": path}}]})


@pytest.mark.parametrize(
    "path",
    [
        "/", "/proc", "/proc/1/root", "/sys/fs/cgroup", "/var", "/var/run", "/run/gpu-share",
        "/var/lib/gpu-share/audit", "/var/lib/kubelet/plugins", "/etc/kubernetes/manifests",
        "/etc/../run//containerd", "/var/run/docker.sock", "/var/run/nvidia/mps", "/opt",
    ],
)  # fmt: skip
def test_a_host_path_to_what_the_node_keeps_is_refused_whatever_is_listed(path: str) -> None:
    for listed in ((), ("/",)):
        with pytest.raises(PolicyDenied, match=r"spec\.volumes\[0\]\.hostPath\.path"):
            collect(check, {"spec": {"volumes": [{"name": "b", "hostPath": {"path": path}}]}}, HostAccess(paths=listed))


@pytest.mark.parametrize(
    "path",
    [
        "/devices", "/dev/shm", "/data/dev/nvidia0", "/tmp/nvidia-mps", "/procs", "/system", "/run/k3s/containerd",
        "/run/podman", "/run/cri-dockerd.sock", "/run/systemd", "/root", "/etc/cron.d", "/var/lib/etcd",
    ],
)  # fmt: skip
def test_another_host_path_is_refused_unless_the_namespace_lists_it(path: str) -> None:
    pod = {"spec": {"volumes": [{"name": "b", "hostPath": {"path": path}}]}}
    with pytest.raises(PolicyDenied, match=contract.HOST_PATHS):
        collect(check, pod, HostAccess())
    collect(check, pod, HostAccess(paths=(path,)))


@pytest.mark.parametrize("name", ["CHECKPOINT_RESTORE", "SYS_BOOT", "cap_syslog", "MAC_ADMIN", "NEW_ONE", "IPC_LOCK"])
def test_an_added_capability_is_refused_unless_the_namespace_lists_it(name: str) -> None:
    pod = adding(name)
    with pytest.raises(PolicyDenied, match=contract.ADDED_CAPABILITIES):
        collect(check, pod, HostAccess())
    listed = NamespacePolicy.from_annotations({contract.ADDED_CAPABILITIES: f"SYS_NICE, {name}"})
    collect(check, pod, listed.host_access(HostAccess()))
    collect(check, adding("NET_BIND_SERVICE", "CAP_CHOWN"), HostAccess())


def adding(*names: str) -> Json:
    return {"spec": {"containers": [{"name": "a", "securityContext": {"capabilities": {"add": [*names]}}}]}}


@pytest.mark.parametrize("name", sorted(CAPABILITIES))
def test_a_capability_that_acts_on_the_node_is_refused_whatever_is_listed(name: str) -> None:
    pod = adding(name)
    with pytest.raises(PolicyDenied, match="bypass its GPU limit"):
        collect(check, pod, HostAccess(capabilities=(name,)))
    with pytest.raises(PolicyDenied, match=contract.ADDED_CAPABILITIES):
        NamespacePolicy.from_annotations({contract.ADDED_CAPABILITIES: name})


@pytest.mark.parametrize("name", ["NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_IMEX_CHANNELS", "NVIDIA_REQUIRE_CUDA"])
def test_a_variable_that_steers_the_toolkit_is_refused_unless_the_namespace_lists_it(name: str) -> None:
    pod = {"spec": {"initContainers": [{"name": "a", "env": [{"name": "NVIDIA_TF32_OVERRIDE"}, {"name": name}]}]}}
    with pytest.raises(PolicyDenied, match=rf"initContainers\[0\].env\[1\].name: .*{contract.TOOLKIT_VARIABLES}"):
        collect(check, pod, HostAccess())
    listed = NamespacePolicy.from_annotations({contract.TOOLKIT_VARIABLES: name})
    collect(check, pod, listed.host_access(HostAccess()))


@pytest.mark.parametrize(
    "path",
    [
        "/var/run/nvidia-container-devices", "/var/run/nvidia-container-devices/all",
        "/var//run/./nvidia-container-devices/0",
        "/run/nvidia-container-devices/GPU-1", "/var/run/x/../nvidia-container-devices/0",
    ],
)  # fmt: skip
def test_a_mount_that_asks_the_toolkit_is_refused(path: str) -> None:
    with pytest.raises(PolicyDenied, match="mountPath"):
        answered({"volumeMounts": [{"name": "a", "mountPath": path}]})


def test_a_mount_of_a_similar_name_stays() -> None:
    assert answered({"volumeMounts": [{"name": "a", "mountPath": "/var/run/nvidia-container-devices-of-mine"}]}) == ()


@pytest.mark.parametrize("flag", ["hostPID", "hostIPC", "shareProcessNamespace"])
def test_flags_that_are_off_stay(flag: str) -> None:
    assert answered({}, {flag: False}) == ()


@pytest.mark.parametrize(("value", "what"), [("false", "the string 'false'"), ("true", "the string 'true'"), (1, "a")])
@pytest.mark.parametrize("flag", ["hostPID", "hostIPC", "shareProcessNamespace", "privileged"])
def test_a_flag_that_is_no_boolean_is_called_that(flag: str, value: object, what: str) -> None:
    wrong = {flag: value}
    container, spec = ({"securityContext": wrong}, {}) if flag == "privileged" else ({}, wrong)
    with pytest.raises(PolicyDenied, match=f"{flag}: must be a boolean, not {what}.*; write false, without quotes"):
        answered(container, spec)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/a/b", "/a/b"), ("//a", "/a"), ("a", "/a"), ("/a/../b/.", "/b"), ("/..", "/"), ("", "/"), (None, ""), (3, "")],
)
def test_paths_are_written_in_one_way(path: object, expected: str) -> None:
    assert normal(path) == expected


ROOT_REFUSED: list[tuple[Json, Json, bool]] = [
    ({}, {}, False),
    ({"runAsUser": 1000}, {}, False),
    ({"runAsUser": 0}, {}, True),
    ({"runAsNonRoot": False}, {}, True),
    ({"runAsUser": 0}, {"runAsUser": 1000}, False),
    ({"runAsNonRoot": False}, {"runAsNonRoot": True}, False),
    ({}, {"runAsUser": 0}, True),
    ({}, {"runAsNonRoot": False}, True),
]


@pytest.mark.parametrize(("outer", "inner", "refused"), ROOT_REFUSED, ids=str)
def test_root_is_refused_where_it_can_be_seen(outer: Json, inner: Json, *, refused: bool) -> None:
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    spec = {"securityContext": outer, "containers": [{"name": "model", "image": "a", "securityContext": inner}]}
    pod = {"metadata": metadata, "spec": spec}
    settings = Settings(root_tenants="refuse")
    if refused:
        with pytest.raises(PolicyDenied, match="root"):
            mutate_pod(pod, policy=NamespacePolicy(), settings=settings)
    else:
        after = mutate_pod(pod, policy=NamespacePolicy(), settings=settings).pod
        assert after["spec"]["securityContext"].get("runAsNonRoot") is outer.get("runAsNonRoot", True)


def test_a_neighbour_that_says_it_is_root_stays_where_root_is_refused() -> None:
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    mesh = {"name": "mesh", "image": "a", "securityContext": {"runAsUser": 0, "runAsNonRoot": False}}
    pod = {"metadata": metadata, "spec": {"initContainers": [mesh], "containers": [{"name": "model", "image": "a"}]}}
    assert mutate_pod(pod, policy=NamespacePolicy(), settings=Settings(root_tenants="refuse")).patch


def entries(number: int) -> dict[str, Json]:
    return {
        "volumes": {"volumes": [{"name": "v"}] * number},
        "mounts": {"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/a"}] * number}]},
        "amounts": {"containers": [{"name": "a", "resources": {"limits": {f"k{i}": "1" for i in range(number)}}}]},
        "tolerations": {"tolerations": [{"key": f"k{i}"} for i in range(number)]},
    }


@pytest.mark.parametrize("what", entries(0))
def test_the_number_of_entries_of_a_list_is_bounded(what: str) -> None:
    answered({}, entries(MAX_ENTRIES)[what])
    with pytest.raises(PolicyDenied, match=f"has {MAX_ENTRIES + 1} entries; write at most {MAX_ENTRIES}"):
        answered({}, entries(MAX_ENTRIES + 1)[what])


def test_annotations_that_the_api_server_never_takes_are_not_read() -> None:
    with pytest.raises(PolicyDenied, match="256 KiB"):
        read_annotations({"metadata": {"annotations": {str(number): "" for number in range(MAX_ANNOTATIONS + 1)}}})
