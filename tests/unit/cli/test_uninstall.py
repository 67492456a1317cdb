"""What the chart's hooks do, against a scripted API server."""

from typing import Any

import pytest

from gpushare.cli import uninstall
from gpushare.cli.uninstall import Clock
from gpushare.errors import ClusterError

CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-share"


class Api:
    """Lists by kind; each look at claims or pods takes one away when told so."""

    def __init__(self, *, shrinks: bool = False, **lists: list[dict[str, Any]]) -> None:
        self.lists, self.shrinks = lists, shrinks
        self.deleted: list[str] = []
        self.queries: list[dict[str, str]] = []

    def list(self, where: str, **query: str) -> tuple[list[dict[str, Any]], str]:
        self.queries.append(query)
        found = list(self.lists.get(kind := where.rpartition("/")[2], []))
        if self.shrinks:
            self.lists[kind] = found[1:]
        return found, "1"

    def delete(self, where: str) -> None:
        if "missing" in where:
            raise ClusterError("not found", 404)
        self.deleted.append(where)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self, seconds: float = 10) -> Clock:
        return Clock(seconds=seconds, now=lambda: self.now, sleep=self.pass_)

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def item(name: str, **rest: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "asr"}, **rest}


def claim(name: str, device_class: str = "gpu-share.io") -> dict[str, Any]:
    return item(name, spec={"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": device_class}}]}})


def test_while_a_claim_is_there_it_waits_then_refuses_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    api, time = Api(resourceclaims=[claim("tts-0-x"), claim("other", "gpu.nvidia.com")]), Time()
    assert uninstall.before(api, time.clock(), ignore_claims=False) == 1  # type: ignore[arg-type]
    assert (api.deleted, time.now) == ([], 10)
    out = capsys.readouterr().out
    assert out.count("waiting") == 1
    assert "nothing was changed: asr/tts-0-x still hold shares" in out
    assert "other" not in out


def test_when_the_last_claim_is_gone_the_configuration_goes() -> None:
    api = Api(resourceclaims=[claim("a"), claim("b", "status.gpu-share.io")], shrinks=True)
    assert uninstall.before(api, Time().clock(), ignore_claims=False) == 0  # type: ignore[arg-type]
    assert api.deleted == [CONFIGURATION]


def test_claims_with_alternatives_count() -> None:
    alternatives = [
        {"name": "x", "deviceClassName": "gpu.nvidia.com"},
        {"name": "y", "deviceClassName": "gpu-share.io"},
    ]
    either = item("either", spec={"devices": {"requests": [{"name": "a", "firstAvailable": alternatives}]}})
    assert uninstall.claims(Api(resourceclaims=[either, item("none", spec={})])) == ["asr/either"]  # type: ignore[arg-type]


def test_claims_are_ignored_when_told_to_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    api, time = Api(resourceclaims=[claim(f"c{n}") for n in range(7)]), Time()
    assert uninstall.before(api, time.clock(), ignore_claims=True) == 0  # type: ignore[arg-type]
    assert (api.deleted, time.now) == ([CONFIGURATION], 0)
    assert "asr/c4 and 2 more" in capsys.readouterr().out


def test_afterwards_goes_what_the_programs_made_and_nothing_else() -> None:
    ours, theirs = "gpu-share-0123456789abcdef", ["gpu-share-mine", "gpu-share-0123456789abcdeX", "x0123456789abcdef"]
    api = Api(resourceslices=[item("n1-gpus")], resourceclaimtemplates=[item(name) for name in (ours, *theirs)])
    assert uninstall.after(api, "gpu-share-system", Time().clock()) == 0  # type: ignore[arg-type]
    assert [each.rpartition("/")[2] for each in api.deleted] == [
        "n1-gpus",
        ours,
        "gpu-share-webhook-tls",
        "gpu-share-webhook-tls-ca",
    ]
    assert {"fieldSelector": "spec.driver=gpu-share.io"} in api.queries, "slices of other drivers are not ours"


def test_agents_are_waited_for_and_an_obstinate_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    time = Time()
    assert uninstall.after(Api(pods=[item("a"), item("b")], shrinks=True), "asr", time.clock()) == 0  # type: ignore[arg-type]
    assert time.now == 4
    api = Api(pods=[item("gpu-share-agent-x")], resourceslices=[item("n1")])
    assert uninstall.after(api, "asr", time.clock()) == 1  # type: ignore[arg-type]
    assert "resourceslices/n1" in api.deleted[0]
    assert "gpu-share-agent-x did not end" in capsys.readouterr().out


def test_what_is_gone_already_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(uninstall, "CONFIGURATION", "missing")
    assert uninstall.before(Api(), Time().clock(), ignore_claims=False) == 0  # type: ignore[arg-type]
    assert "was gone already" in capsys.readouterr().out
