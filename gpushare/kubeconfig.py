"""What the official Kubernetes client is for: kubeconfigs with all their ways to log in, and commands run in pods.

Loaded where somebody needs it and not before: it takes 15 MiB and a third of a second. An enforcer in a pod needs
neither, and ``gpushare.plain_kubeconfig`` reads the kubeconfigs that need no log-in.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Self

from kubernetes import client, config
from kubernetes.stream import ws_client
from kubernetes.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL, WSClient
from websocket import WebSocket, WebSocketException, WebSocketTimeoutException

from gpushare import plain_kubeconfig
from gpushare.errors import ClusterError
from gpushare.service_account import Access, ServiceAccount

MESSAGE_LIMIT: Final = 500
HANDSHAKE: Final = 10.0
"""Seconds for a command in a pod to begin. The API server waits for ever for a kubelet that hangs."""
_UNUSABLE: Final = (config.ConfigException, *plain_kubeconfig.UNREAD)
"""What the official client raises for a file that is missing, no YAML, or of another shape than a kubeconfig."""


class Kubeconfig:
    """A way to the API server that a kubeconfig describes (``service_account.Access``)."""

    def __init__(self, configuration: client.Configuration) -> None:
        self.configuration: Final = configuration
        self.host: str = configuration.host
        self.pool = client.ApiClient(configuration).rest_client.pool_manager

    @classmethod
    def load(cls, file: str | None = None, context: str | None = None) -> Self:
        """Read the given file, or the user's own.

        Raises:
            ClusterError: there is no usable configuration.
        """
        configuration = client.Configuration()
        try:
            # The official client has no annotations.
            config.load_kube_config(config_file=file, context=context, client_configuration=configuration)  # type: ignore[no-untyped-call]
        except _UNUSABLE as error:
            what = f"no usable kubeconfig in {file}" if file else "no usable kubeconfig"
            raise ClusterError(f"{what}: {_why(error)}; {plain_kubeconfig.GIVE}") from error
        return cls(configuration)

    def authorization(self) -> dict[str, str]:
        """See ``Access``."""
        setting = self.configuration.auth_settings().get("BearerToken")
        return {"Authorization": str(setting["value"])} if setting else {}


def namespace_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return the namespace that a context of the user's kubeconfig names; ``default`` where it names none."""
    with suppress(*_UNUSABLE):
        # The official client has no annotations.
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)  # type: ignore[no-untyped-call]
        chosen = next((each for each in contexts if each["name"] == context), current)
        return str(chosen["context"].get("namespace") or "default")
    return "default"


class _Socket(WebSocket):
    """Waits for a time: the official client has no option for it."""

    def connect(self, url: str, **options: Any) -> None:
        super().connect(url, **options, timeout=HANDSHAKE)  # type: ignore[no-untyped-call] # it has no annotations


ws_client.WebSocket = _Socket  # type: ignore[attr-defined] # imported there


def exec_in_pod(access: Access, command: str, authorization: Mapping[str, str], silence: float) -> Iterator[bytes]:
    """See ``KubeClient.run``.

    Args:
        access: to the API server.
        command: the path of the pod's ``exec``, with its query.
        authorization: headers that say who asks.
        silence: seconds without standard output after which it is given up.
    """
    where = command.partition("?")[0]
    url, headers = access.host.replace("http", "ws", 1) + command, {k.lower(): v for k, v in authorization.items()}
    try:
        # The official client has no annotations.
        conversation: Any = WSClient(  # type: ignore[no-untyped-call]
            _configuration(access), url, headers, capture_all=False, binary=True
        )
    except (WebSocketException, OSError, ValueError) as error:
        raise ClusterError(f"{where}: {_unwilling(error)}", getattr(error, "status_code", 0)) from error
    try:
        yield from _output(conversation, where, silence)
    except (WebSocketException, OSError) as error:
        raise ClusterError(f"{where}: the connection broke: {error}") from error
    finally:
        conversation.sock.shutdown()


def _configuration(access: Access) -> client.Configuration:
    """What the client wants to know of a server it talks to: how to trust it."""
    if isinstance(access, plain_kubeconfig.PlainKubeconfig):
        access = Kubeconfig.load(*access.source)
    if isinstance(access, Kubeconfig):
        return access.configuration
    configuration = client.Configuration(host=access.host)
    if isinstance(access, ServiceAccount):
        configuration.ssl_ca_cert = str(access.authority)
    return configuration


def _output(conversation: Any, where: str, silence: float) -> Iterator[bytes]:
    """Yield standard output until the command exits, then raise if it failed."""
    complaint, heard = b"", time.monotonic()
    while conversation.is_open():
        conversation.update(timeout=max(0.0, heard + silence - time.monotonic()))
        out, complained = (conversation.read_channel(channel) for channel in (STDOUT_CHANNEL, STDERR_CHANNEL))
        complaint = (complaint + complained)[:MESSAGE_LIMIT]
        if out:  # standard error alone does not count: a command can print errors for ever
            heard = time.monotonic()
        elif conversation.is_open() and time.monotonic() >= heard + silence:
            raise ClusterError(f"{where}: the command printed nothing for {silence:g} seconds")
        if out:
            yield out
    _check_end(where, conversation.read_channel(ERROR_CHANNEL), complaint.decode("utf-8", "replace").strip())


def _check_end(where: str, status: bytes, complaint: str) -> None:
    try:
        ended = json.loads(status)
        good, message = ended["status"] == "Success", str(ended.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        good, message = False, "the connection ended before the command finished"
    if not good:
        raise ClusterError(f"{where}: {message}" + (f": {complaint}" if complaint else ""))


def _unwilling(error: Exception) -> str:
    """The sentence of a Status answer to a handshake, or what there is instead of one."""
    if isinstance(error, WebSocketTimeoutException | TimeoutError):
        return f"no answer within {HANDSHAKE:g} s: the node's kubelet hangs, or the API server is away"
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(getattr(error, "resp_body", None) or b"")["message"])[:MESSAGE_LIMIT]
    return f"the API server does not answer: {error}"[:MESSAGE_LIMIT]


def _why(error: Exception) -> str:
    """Describe what is wrong; the client's own texts of two kinds describe its code."""
    shape = isinstance(error, AttributeError | TypeError)
    return "its content is not a kubeconfig" if shape else " ".join(str(error).split()).rstrip(".")
