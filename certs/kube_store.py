"""Certificates in the cluster: Secrets as stores, and the ``caBundle`` of our webhook configuration."""

import base64
import binascii
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from certs.store import ConflictError, Files
from gpushare.contract import SERVING_ENDS
from gpushare.errors import ClusterError, ConfigError
from gpushare.kube_client import ADMISSION_V1, CORE_V1, JSON_PATCH, KubeClient, find, path

TLS: Final = "kubernetes.io/tls"
OPAQUE: Final = "Opaque"
KIND: Final = "mutatingwebhookconfigurations"
LABELS: Final = {"app.kubernetes.io/managed-by": "gpu-share-certs", "app.kubernetes.io/part-of": "gpu-share"}
MAX_VALUE: Final = 128 * 1024
"""Characters of base64 read of one entry of a Secret."""


class SecretStore:
    """A Secret. Create-if-absent and replace both fail after a concurrent write; the caller then plans again."""

    def __init__(self, cluster: KubeClient, namespace: str, name: str, kind: str) -> None:
        self._cluster, self._namespace, self._name, self._kind = cluster, namespace, name, kind

    def __str__(self) -> str:
        return f"Secret {self._namespace}/{self._name}"

    def read(self) -> tuple[dict[str, bytes], str]:
        """Read the Secret; entries that are no base64, or too long, are left out."""
        found = find(self._cluster, self._where(self._name))
        if found is None:
            return {}, ""
        self._kind = found.get("type") or self._kind  # cannot be changed; take a Secret made by hand as it is
        decoded = {key: _decoded(value) for key, value in (found.get("data") or {}).items()}
        return {k: v for k, v in decoded.items() if v is not None}, found["metadata"]["resourceVersion"]

    def write(self, files: Files, version: str) -> None:
        """Create the Secret, or replace the one of that version."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._name, "namespace": self._namespace, "labels": LABELS},
            "type": self._kind,
            "data": {key: base64.b64encode(value).decode() for key, value in files.items()},
        }
        try:
            if version:
                body["metadata"]["resourceVersion"] = version  # type: ignore[index]
                self._cluster.replace(self._where(self._name), body)
            else:
                self._cluster.create(self._where(), body)
        except ClusterError as error:
            if error.status == HTTPStatus.CONFLICT:
                raise ConflictError(f"another client wrote {self} since it was read") from error
            raise

    def _where(self, name: str = "") -> str:
        return path(CORE_V1, "secrets", name, self._namespace)


def publish(cluster: KubeClient, names: Sequence[str], bundle: bytes, ends: str) -> bool:
    """Put the bundle into every webhook of the configurations of these names; say whether one had another.

    When the serving certificate ``ends`` is noted there as well.

    Raises:
        ConflictError: a configuration changed meanwhile.
        ClusterError: none of that name exists (status 404), or the API server refused.
    """
    changed = [_publish(cluster, name, base64.b64encode(bundle).decode(), ends) for name in names]
    return any(changed)


def _publish(cluster: KubeClient, name: str, bundle: str, ends: str) -> bool:
    """Change these two fields and nothing else: the operator owns the rest. The tests make a stale index fail."""
    where = path(ADMISSION_V1, KIND, name)
    item = find(cluster, where)
    if item is None:
        message = f"the API server has no webhook configuration {name}; create it first"
        raise ClusterError(message, HTTPStatus.NOT_FOUND)
    webhooks, notes = item.get("webhooks") or [], item["metadata"].get("annotations") or {}
    stale = [i for i, w in enumerate(webhooks) if (w.get("clientConfig") or {}).get("caBundle") != bundle]
    if not stale and notes.get(SERVING_ENDS, "") == ends:
        return False
    noted = notes | {SERVING_ENDS: ends}
    changes: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": item["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/metadata/annotations", "value": noted},
    ]
    changes += [{"op": "add", "path": f"/webhooks/{i}/clientConfig/caBundle", "value": bundle} for i in stale]
    try:
        cluster.patch(where, changes, JSON_PATCH)
    except ClusterError as error:
        if error.status in {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}:
            raise ConflictError(
                f"webhook configuration {name} changed since it was read, or is not valid; run gpu-share certs "
                f"again, or correct the configuration: {error.message}"
            ) from error
        raise
    return bool(stale)


def secret_name(text: str) -> tuple[str, str]:
    """Read ``NAMESPACE/NAME``.

    Raises:
        ConfigError: it is not that.
    """
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise ConfigError(
            f"--secret {text!r:.80} is not NAMESPACE/NAME; write for example gpu-share-system/webhook-tls"
        )
    return namespace, name


def _decoded(value: str) -> bytes | None:
    if len(value) > MAX_VALUE:
        return None
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return None
