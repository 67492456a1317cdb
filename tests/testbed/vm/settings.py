"""Settings of containerd, CNI, kubelet and kube-proxy in the virtual node: defaults wherever a default exists. Pure."""

import json
from typing import Any, Final

import yaml

from tests.testbed.cluster.network import Network
from tests.testbed.cluster.node_files import PAUSE_IMAGE, cni

KEYS: Final = "/var/lib/kubelet/pki"
CONTAINERD: Final = f"""\
version = 3

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "docker.io/{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
stats_collect_period = "60s"

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = true
"""


def files(network: Network, number: int, name: str) -> dict[str, str]:
    """Settings of node ``number`` by their path in the guest."""
    address = network.node_address(number)
    environment = {"NODE_NAME": name, "NODE_ADDRESS": address, "NODE_LABELS": ""}
    return {
        "/etc/containerd/config.toml": CONTAINERD,
        "/etc/cni/net.d/10-pods.conflist": json.dumps(cni(network.pod_cidr(number))),
        "/var/lib/kubelet/node.env": "".join(f"{key}={value}\n" for key, value in environment.items()),
        "/var/lib/kubelet/config.yaml": yaml.safe_dump(_kubelet(address)),
        "/var/lib/kube-proxy/config.yaml": yaml.safe_dump(_kube_proxy(network, name)),
    }


def _kubelet(address: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"x509": {"clientCAFile": f"{KEYS}/ca.crt"}},
        "tlsCertFile": f"{KEYS}/serving.crt",
        "tlsPrivateKeyFile": f"{KEYS}/serving.key",
        "cgroupDriver": "systemd",
        "imageGCHighThresholdPercent": 100,
        # There is no DNS. At this address a look-up is refused at once, where none at all would wait for its time-outs.
        "clusterDNS": [address],
        "clusterDomain": "cluster.local",
    }


def _kube_proxy(network: Network, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": name,
        "clusterCIDR": network.cluster_cidr,
        "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.yaml"},
    }
