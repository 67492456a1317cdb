"""Kubeconfigs that are read without the official client say what the official client would."""

import base64
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpushare import kube_client
from gpushare import kubeconfig as official
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare.plain_kubeconfig import PlainKubeconfig, namespace_of
from tests.support.pki import Authority, Pair

LARGE: Final = {"asyncio", "cryptography", "kubernetes", "pydantic", "requests", "structlog"}


class Caller(BaseHTTPRequestHandler):
    """Answers with who called: the certificate's name and the token."""

    def log_message(self, *_: object) -> None:
        """Keep the test output quiet."""

    def do_GET(self) -> None:
        connection: Any = self.connection
        certificate = connection.getpeercert() or {"subject": ()}
        who = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
        body = json.dumps({"name": who, "token": self.headers.get("Authorization")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(name="authority", scope="module")
def _authority() -> Authority:
    return Authority()


@pytest.fixture(name="user", scope="module")
def _user(authority: Authority) -> Pair:
    return authority.issue(name="operator", usage=ExtendedKeyUsageOID.CLIENT_AUTH)


@pytest.fixture(name="url", scope="module")
def _url(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, pair = tmp_path_factory.mktemp("server"), authority.issue()
    (folder / "both").write_bytes(pair.certificate + pair.key)
    (folder / "ca").write_bytes(authority.bundle)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca"))
    tls.verify_mode = ssl.CERT_OPTIONAL
    tls.load_cert_chain(folder / "both")
    server = HTTPServer(("127.0.0.1", 0), Caller)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any], namespace: str = "asr") -> str:
    """Write a kubeconfig with two contexts and two users of one name, of which the first counts."""
    context = {"cluster": "c", "user": "u", "namespace": namespace}
    config = {
        "current-context": "x", "contexts": [{"name": "x", "context": context}, {"name": "bare", "context": {}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}, {"name": "u", "user": {"token": "second"}}],
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(config))
    return str(folder / "config")


@pytest.mark.parametrize("how", ["data", "files", "token", "both", "nobody"])
def test_the_server_sees_who_the_official_client_would_have_been(
    how: str, url: str, authority: Authority, user: Pair, tmp_path: Path
) -> None:
    for name, content in {"ca.pem": authority.bundle, "user.pem": user.certificate, "key.pem": user.key}.items():
        (tmp_path / name).write_bytes(content)
    data = {"client-certificate-data": coded(user.certificate), "client-key-data": coded(user.key)}
    cluster = {"server": url, "certificate-authority-data": coded(authority.bundle)}
    if how == "files":
        cluster = {"server": url, "certificate-authority": "ca.pem"}
    files = {"client-certificate": "user.pem", "client-key": str(tmp_path / "key.pem")}
    users = {"data": data, "files": files, "token": {"token": "t"}, "both": {**data, "token": "t"}, "nobody": {}}
    file = written(tmp_path, cluster, users[how])
    plain, theirs = PlainKubeconfig.read(file), official.Kubeconfig.load(file)
    assert plain is not None
    seen = KubeClient(plain).get("/version")
    assert seen == KubeClient(theirs).get("/version")
    token = "Bearer t" if how in ("token", "both") else None
    assert seen == {"name": ["operator"] if how in ("data", "files", "both") else [], "token": token}


def test_a_server_of_another_authority_is_not_trusted(url: str, tmp_path: Path) -> None:
    file = written(tmp_path, {"server": url, "certificate-authority-data": coded(Authority().bundle)}, {"token": "t"})
    assert PlainKubeconfig.read(file) is not None
    with pytest.raises(ClusterError, match="certificate verify failed"):
        KubeClient.connect(file).get("/version")


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"insecure-skip-tls-verify": True}, {}),
        ({"proxy-url": "http://localhost:1"}, {}),
        ({"tls-server-name": "a"}, {}),
        ({"certificate-authority-data": "###"}, {}),
        ({"certificate-authority-data": ""}, {}),
        ({}, {"exec": {"command": "log-in"}}),
        ({}, {"auth-provider": {"name": "oidc"}}),
        ({}, {"username": "a", "password": "b"}),
        ({}, {"tokenFile": "/nowhere"}),
        ({}, {"client-certificate": "/nowhere", "client-key": "/nowhere"}),
        ({}, {"client-certificate-data": ""}),
        ({}, {"as": "somebody"}),
    ],
)
def test_what_says_more_is_left_to_the_official_client(
    cluster: dict[str, Any], user: dict[str, Any], authority: Authority, tmp_path: Path
) -> None:
    plain = {"server": "https://127.0.0.1", "certificate-authority-data": coded(authority.bundle)}
    assert PlainKubeconfig.read(written(tmp_path, plain, {})) is not None
    assert PlainKubeconfig.read(written(tmp_path, {**plain, **cluster}, user)) is None


@pytest.mark.parametrize("text", ["a: [", "a: 2026-99-99", "\x00", pytest.param("[" * 1_000, id="deep")])
def test_what_cannot_be_parsed_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ClusterError, match=f"no usable kubeconfig in {file}: .*; give --kubeconfig"):
        KubeClient.connect(str(file))
    assert kube_client.namespace_of(str(file)) == "default"


def test_several_files_and_a_proxy_of_the_environment_are_left_to_it(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"server": "https://127.0.0.1", "certificate-authority-data": coded(authority.bundle)}
    file = written(tmp_path, plain, {"token": "t"})
    monkeypatch.setenv("KUBECONFIG", file)
    assert PlainKubeconfig.read() is not None
    monkeypatch.setenv("KUBECONFIG", f"{file}:{file}")
    assert PlainKubeconfig.read() is None
    monkeypatch.setenv("HTTPS_PROXY", "http://localhost:1")
    assert PlainKubeconfig.read(file) is None


@pytest.mark.parametrize("context", [None, "x", "bare", "absent"])
def test_the_namespace_is_that_of_the_official_client(context: str | None, tmp_path: Path) -> None:
    file = written(tmp_path, {}, {})
    assert kube_client.namespace_of(file, context) == official.namespace_of(file, context)
    assert (namespace_of(file, "x"), namespace_of(file, "bare"), namespace_of(file, "absent")) == (
        "asr",
        "default",
        None,
    )


def test_check_asks_a_cluster_without_loading_what_takes_long(authority: Authority, tmp_path: Path) -> None:
    plain = {"server": "https://127.0.0.1:1", "certificate-authority-data": coded(authority.bundle)}
    file = written(tmp_path, plain, {"token": "t"})
    code = "import sys; from gpushare_cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, "check", "--cluster", "--kubeconfig", file]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "does not answer" in said
    loaded = said.splitlines()[-1].split()
    assert not LARGE & {name.partition(".")[0] for name in loaded}
    assert len(loaded) < 400, "each takes a millisecond"
