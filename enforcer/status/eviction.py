"""Evict one pod through the Eviction API, which respects PodDisruptionBudgets."""

from gpushare.kube_client import CORE_V1, KubeClient, path


def evict(cluster: KubeClient, namespace: str, name: str, uid: str) -> None:
    """Ask once.

    Raises:
        ClusterError: refused, or not answered. Status 404 or 409: no pod of that name has that UID.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    cluster.create(f"{path(CORE_V1, 'pods', name, namespace)}/eviction", body)
