"""Command lines of the control plane's servers."""

from pathlib import Path
from typing import Final

import yaml

from tests.testbed.cluster import used_rights
from tests.testbed.cluster.network import Network

KUBELET_CLIENT: Final = "kubelet-client"
"""Name of the API server's own certificate towards kubelets."""


def etcd(binary: Path, root: Path, client: int, peer: int) -> list[str]:
    here, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    return [
        str(binary),
        f"--data-dir={root}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={here}",
        f"--advertise-client-urls={here}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--log-level=warn",
    ]


def apiserver(binary: Path, root: Path, store: int, port: int, network: Network | None) -> list[str]:
    keys = root / "pki"
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{store}",
        f"--bind-address={network.address if network else '127.0.0.1'}",
        f"--secure-port={port}",
        f"--tls-cert-file={keys}/apiserver.crt",
        f"--tls-private-key-file={keys}/apiserver.key",
        f"--cert-dir={root}/apiserver",
        f"--token-auth-file={keys}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys}/service-accounts.key",
        f"--service-account-signing-key-file={keys}/service-accounts.key",
        f"--client-ca-file={keys}/ca.crt",
        f"--kubelet-certificate-authority={keys}/ca.crt",
        f"--kubelet-client-certificate={keys}/{KUBELET_CLIENT}.crt",
        f"--kubelet-client-key={keys}/{KUBELET_CLIENT}.key",
        *_reachable(root, network),
    ]


def _reachable(root: Path, network: Network | None) -> list[str]:
    """With nodes, pods reach the server by its Service; it reaches their webhooks by address, having no kube-proxy."""
    if network is None:
        return ["--endpoint-reconciler-type=none"]
    policy = root / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(used_rights.POLICY))
    return [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={root / used_rights.LOG}",
        f"--advertise-address={network.address}",
        "--enable-aggregator-routing=true",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def scheduler(binary: Path, root: Path, kubeconfig: Path, rate: int | None) -> list[str]:
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), **({"qps": rate, "burst": 2 * rate} if rate else {})},
        "leaderElection": {"leaderElect": False},
    }
    file = root / "scheduler.yaml"
    file.write_text(yaml.safe_dump(settings))
    return [str(binary), f"--config={file}", "--secure-port=0"]


def manager(binary: Path, root: Path, kubeconfig: Path, rate: int | None, *, nodes: bool) -> list[str]:
    keys = root / "pki"
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={keys}/service-accounts.key",
        f"--root-ca-file={keys}/ca.crt",
        # Hollow nodes send no heartbeats: the controller that would taint them stays off where there are no real ones.
        f"--controllers={'*' if nodes else '*,-node-lifecycle-controller'}",
        "--leader-elect=false",
        "--secure-port=0",
        *([f"--kube-api-qps={rate}", f"--kube-api-burst={2 * rate}"] if rate else []),
    ]
