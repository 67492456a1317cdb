"""Settings of containerd, CNI, kubelet and kube-proxy for a node, and the script that lays out its namespaces.

Inside its mount namespace a node has the paths every node has: ``/var`` and ``/run`` are folders of its own.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.testbed.cluster.cgroups import LEAF, PROCS, Hierarchy, mount_commands
from tests.testbed.cluster.network import Network
from tests.testbed.cluster.packages import over_usr

PAUSE_IMAGE: Final = "gpu-share-bed/pause:1"
SERVICE_NAME: Final = "cluster.local"
FOLDERS: Final = (
    "run", "var/lib/kubelet", "var/lib/containerd", "var/lib/cni/net.d", "var/lib/kube-proxy", "var/log/pods",
    "var/log/containers", "var/cache", "var/tmp",
)  # fmt: skip
CONTAINERD_TOML: Final = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "{snapshotter}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
cdi_spec_dirs = ["/var/run/cdi"]
# Without CAP_SYS_RESOURCE a lower score is refused, and runc ends without a word.
restrict_oom_score_adj = true
# Nobody asks for containers' CPU here; once a second, as by default, that is a thousandth of a core for each.
stats_collect_period = "10m"
stats_retention_period = "20m"
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/var/lib/cni/net.d"

[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.internal.v1.opt']
path = "/var/lib/containerd/opt"
"""


def lay_out(home: Path) -> None:
    """Make the folders of a node, which its namespace shows as ``/var`` and ``/run``."""
    for folder in FOLDERS:
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "var" / "run").symlink_to("/run")


def write(home: Path, name: str, number: int, network: Network, keys: Path) -> None:
    """Write all settings below ``home``; ``keys`` is the cluster's folder of certificates."""
    lib = home / "var" / "lib"
    snapshotter = "native" if on_overlay(home) else "overlayfs"
    (lib / "containerd" / "config.toml").write_text(
        CONTAINERD_TOML.format(pause=f"docker.io/{PAUSE_IMAGE}", snapshotter=snapshotter)
    )
    (lib / "cni" / "net.d" / "10-pods.conflist").write_text(json.dumps(cni(network.pod_cidr(number))))
    address = network.node_address(number)
    (lib / "kubelet" / "resolv.conf").write_text("search invalid\n")
    (lib / "kubelet" / "config.yaml").write_text(yaml.safe_dump(kubelet(address, keys, name)))
    (lib / "kube-proxy" / "config.yaml").write_text(yaml.safe_dump(_kube_proxy(network, keys, name)))


def namespaces_script(home: Path, name: str, cgroup: str, mounted: Sequence[Hierarchy], keep: Sequence[Path]) -> str:
    """Shell script to run in new mount, network, cgroup and UTS namespaces; it stays as what holds them.

    ``keep``: folders that must be seen although ``/var`` or ``/run`` is replaced.
    """
    covered = [path for path in keep if path.parts[1] in {"var", "run"}]
    packages = home / "packages"
    lines = [
        "set -eu",
        *(f"echo $$ > {each.where / cgroup / LEAF / PROCS}" for each in mounted),
        over_usr(packages.resolve()),
        *(f"mkdir -p {home}{path}; mount --bind {path} {home}{path}" for path in covered),
        f"mount --rbind {home}/var /var",
        f"mount --rbind {home}/run /run",
        "mount -t sysfs sysfs /sys",
        *mount_commands(mounted),
        "mount --make-rshared /",
        f"hostname {name}",
        "ip link set lo up",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "touch /run/laid-out",
        "exec sleep infinity",
    ]
    return "\n".join(lines) + "\n"


def on_overlay(folder: Path) -> bool:
    """Overlays cannot be made on an overlay (a container's own file system)."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [each for each in mounts if folder.absolute().is_relative_to(each[1])]
    return max(holding, key=lambda each: len(each[1]))[2] == "overlay"


def cni(pods: str) -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}


def kubelet(address: str, keys: Path, name: str) -> dict[str, Any]:
    """A kubelet's settings."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{keys}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{keys}/{name}-serving.crt",
        "tlsPrivateKeyFile": f"{keys}/{name}-serving.key",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        # A lower score needs CAP_SYS_RESOURCE.
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "resolvConf": "/var/lib/kubelet/resolv.conf",
        # There is no DNS. At this address a look-up is refused at once, where none at all would wait for its time-outs.
        "clusterDNS": [address],
        "clusterDomain": SERVICE_NAME,
        "nodeStatusUpdateFrequency": "5s",
    }


def _kube_proxy(network: Network, keys: Path, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": name,
        "clusterCIDR": network.cluster_cidr,
        "clientConnection": {"kubeconfig": f"{keys.parent}/kubeconfigs/kube-proxy.yaml"},
        # The kernel's connection table is the machine's: its size stays as it is.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "metricsBindAddress": "127.0.0.1:10249",
        "healthzBindAddress": "127.0.0.1:10256",
    }
