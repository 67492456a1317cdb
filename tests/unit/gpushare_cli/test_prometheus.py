"""The client of Prometheus: what it sends, and what it says about a server that does not answer as one."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import ConfigError, GpuShareError
from gpushare_cli import prometheus
from gpushare_cli.options import PROMETHEUS_TOKEN, add_prometheus
from gpushare_cli.prometheus import Prometheus, address, label
from tests.support.prometheus_api import Api
from tests.testbed.cluster.ports import free_ports


def options(*words: str) -> Prometheus | None:
    parser = argparse.ArgumentParser()
    add_prometheus(parser, "")
    return Prometheus.of(parser.parse_args(words))


def test_queries_carry_the_token_and_the_labels(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PROMETHEUS_TOKEN, "from-environment")
    api.answers = {"up": [({"job": "a"}, [12, "3"])]}
    server = options("--prometheus", f"{api.url}/prefix/", "--prometheus-label", 'cluster=a"b')
    assert server is not None
    (found,) = server.at(server.selector("up", 'job="a"'), 12.0)
    assert (found.labels, found.points) == ({"job": "a"}, [(12.0, 3.0)])
    assert api.asked[0] == {
        "path": "/prefix/api/v1/query", "token": "Bearer from-environment",
        "query": 'up{job="a",cluster="a\\"b"}', "time": "12.000", "timeout": "60s",
    }  # fmt: skip
    (tmp_path / "token").write_text("from-file\n")
    server = options("--prometheus", api.url, "--prometheus-token-file", str(tmp_path / "token"))
    assert server is not None
    api.answers = {"up": [({}, [[1, "2"], [2, "NaN"], [3, "4"]])]}
    assert server.between("up", 1, 3, 1)[0].points == [(1.0, 2.0), (3.0, 4.0)]
    assert (api.asked[1]["token"], api.asked[1]["step"]) == ("Bearer from-file", "1.000")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": 401}, "--prometheus-token-file"),
        ({"status": 302, "headers": {"Location": "https://sso/"}}, "redirects to https://sso/; name the address"),
        ({"status": 404, "raw": b"nothing"}, "check the address and its path"),
        ({"status": 422, "raw": b'{"status": "error", "error": "query timed out"}'}, "HTTP 422: query timed out"),
        ({"raw": b"<html>"}, "not one of Prometheus' API"),
        ({"raw": b'{"data": {"result": [{"metric": 1}]}}'}, "not one of Prometheus' API"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said_with_the_address_and_the_remedy(
    api: Api, change: dict[str, Any], said: str
) -> None:
    api.__dict__.update(change)
    with pytest.raises(GpuShareError) as error:
        Prometheus(api.url, token="secret").at("up", 1.0)
    assert error.value.message.startswith(f"Prometheus at {api.url}: ")
    assert said in error.value.message
    assert len(api.asked) == 1, "no redirect is followed, which would take the token along"


def test_an_answer_has_bounds_of_size_and_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MOST_BYTES", 1000)
    api.raw = b"x" * 2000
    with pytest.raises(GpuShareError, match=r"answer has more than .* --prometheus-label namespace="):
        Prometheus(api.url).at("up", 1.0)
    monkeypatch.setattr(prometheus, "MOST_BYTES", 10**6)
    monkeypatch.setattr(prometheus, "ANSWER_SECONDS", -1.0)
    monkeypatch.setattr("urllib3.Timeout", lambda **_: 5.0)
    with pytest.raises(GpuShareError, match="takes over"):
        Prometheus(api.url).at("up", 1.0)


def test_a_server_that_is_not_there_or_has_another_certificate_is_named(api: Api) -> None:
    (port,) = free_ports(1)
    with pytest.raises(GpuShareError, match=rf"http://127.0.0.1:{port}: no answer .* port-forward"):
        Prometheus(f"http://127.0.0.1:{port}").at("up", 1.0)
    with pytest.raises(GpuShareError, match="name its CA with --prometheus-ca"):
        Prometheus(api.url.replace("http:", "https:")).at("up", 1.0)


def test_warnings_of_the_server_are_kept(api: Api) -> None:
    api.more = {"warnings": ["a store \x1b[2Jdid not answer"]}
    server = Prometheus(api.url)
    assert server.at("up", 1.0) == []
    assert [*server.warnings] == ["a store  [2Jdid not answer"]


@pytest.mark.parametrize(
    "text", ["localhost:9090", "ftp://a", "http://", "http://a/?x=1", "http://a:b", "http://me:secret@a"]
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        address(text)


@pytest.mark.parametrize("text", ["cluster", "=a", "a b=c", "a-b=c"])
def test_what_is_not_a_label_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        label(text)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "two").write_text("a\nb")
    for option, file, said in (
        ("--prometheus-token-file", "none", "name a file that you may read"),
        ("--prometheus-token-file", "two", "write one line"),
        ("--prometheus-ca", "none", "name a file that you may read"),
        ("--prometheus-ca", "two", "name a file in PEM"),
    ):
        with pytest.raises(ConfigError, match=f"{option}.*{said}"):
            options("--prometheus", "http://a", option, str(tmp_path / file))
    assert options() is None
