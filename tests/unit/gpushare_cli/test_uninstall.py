"""What the chart's hooks do, against a scripted API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enforcer.runtime import lock
from gpushare.errors import ClusterError
from gpushare_cli import main as cli
from gpushare_cli.uninstall import command as uninstall
from gpushare_cli.uninstall.command import Clock

CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-share"


class Api:
    """Lists by kind; each look at claims or pods takes one away when told so."""

    def __init__(self, *, shrinks: bool = False, **lists: list[dict[str, Any]]) -> None:
        self.lists, self.shrinks = lists, shrinks
        self.deleted: list[str] = []
        self.queries: list[dict[str, str]] = []

    def listing(self, where: str, **query: str) -> Iterator[Any]:
        return iter(self.list(where, **query)[0])

    def list(self, where: str, **query: str) -> tuple[list[dict[str, Any]], str]:
        self.queries.append(query)
        found = list(self.lists.get(kind := where.rpartition("/")[2], []))
        if self.shrinks:
            self.lists[kind] = found[1:]
        return found, "1"

    def get(self, where: str) -> dict[str, Any]:
        if "cleaner" not in self.lists:
            raise ClusterError("not found", 404)
        looks = self.lists["cleaner"]
        return looks.pop(0) if len(looks) > 1 else looks[0]

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


def claim(name: str, device_class: str = "gpu-share.io", **rest: Any) -> dict[str, Any]:
    spec = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": device_class}}]}}
    return item(name, **({"spec": spec, "status": {"allocation": {}}} | rest))


def test_while_a_claim_is_there_it_waits_then_refuses_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    api, time = Api(resourceclaims=[claim("tts-0-x"), claim("other", "gpu.nvidia.com")]), Time()
    assert uninstall.before(api, time.clock(), ignore_claims=False) == 1  # type: ignore[arg-type] # it only lists
    assert (api.deleted, time.now) == ([], 10)
    out = capsys.readouterr().out
    assert out.count("waiting") == 1
    assert "uninstall refused; nothing was changed\n" in out
    assert "cannot terminate without the enforcer: asr/tts-0-x (of no pod)\n" in out
    assert "not allocated" not in out
    assert "other" not in out


def test_a_refusal_comes_at_once_and_says_how_to_keep_the_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert uninstall.CLAIM_SECONDS < 5
    monkeypatch.setattr(uninstall, "CLAIM_SECONDS", 0.0)
    monkeypatch.setattr("gpushare.kube_client.KubeClient.connect", lambda _: Api(resourceclaims=[claim("tts-0-x")]))
    assert cli.main(["uninstall", "before", "--namespace=gpus", "--release=sharing/7", "--timeout=600"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith(": helm rollback sharing 7 --namespace gpus")


def test_a_claim_that_was_never_allocated_is_reported_to_be_and_how_to_get_rid_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, by_hand = claim("tts-0-x", status={}), claim("mine", status={})
    used = {"allocation": {}, "reservedFor": [{"resource": "pods", "name": "user"}]}
    made["metadata"] |= {"ownerReferences": [{"kind": "Pod", "name": "tts-0", "uid": "u"}]}
    api = Api(resourceclaims=[made, by_hand, claim("held", status=used)])
    assert uninstall.before(api, Time().clock(), ignore_claims=False) == 1  # type: ignore[arg-type] # it only lists
    assert api.deleted == []
    _, _, holds, _, waits, *how = capsys.readouterr().out.splitlines()
    assert holds.endswith(": asr/held (of pod user)")
    assert "not allocated yet" in waits
    assert waits.endswith(": asr/mine (of no pod), asr/tts-0-x (of pod tts-0)")
    assert "delete their pods" in how[0]
    assert "kubectl --namespace NAMESPACE delete resourceclaim NAME" in how[1]


def test_going_on_without_claims_only_those_that_are_held_are_left_to_be_forced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    api = Api(resourceclaims=[claim("waits", status={})])
    assert uninstall.before(api, Time().clock(), ignore_claims=True) == 0  # type: ignore[arg-type]
    assert "Terminating" not in capsys.readouterr().out


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
    found = uninstall.claims(Api(resourceclaims=[either, item("none", spec={})]))  # type: ignore[arg-type]
    assert [each.place for each in found] == ["asr/either"]


def test_claims_are_ignored_when_told_to_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    api, time = Api(resourceclaims=[claim(f"c{n}") for n in range(7)]), Time()
    assert uninstall.before(api, time.clock(), ignore_claims=True) == 0  # type: ignore[arg-type]
    assert (api.deleted, time.now) == ([CONFIGURATION], 0)
    out = capsys.readouterr().out
    assert "still hold shares: asr/c0 (of no pod)" in out
    assert "asr/c4 (of no pod) and 2 more" in out


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


def test_enforcers_are_waited_for_and_an_obstinate_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    time = Time()
    assert uninstall.after(Api(pods=[item("a"), item("b")], shrinks=True), "asr", time.clock()) == 0  # type: ignore[arg-type]
    assert time.now == 4
    api = Api(pods=[item("gpu-share-enforcer-x")], resourceslices=[item("n1")])
    assert uninstall.after(api, "asr", time.clock()) == 1  # type: ignore[arg-type]
    assert "resourceslices/n1" in api.deleted[0]
    assert "gpu-share-enforcer-x did not terminate" in capsys.readouterr().out


def test_what_is_gone_already_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(uninstall, "CONFIGURATION", "missing")
    assert uninstall.before(Api(), Time().clock(), ignore_claims=False) == 0  # type: ignore[arg-type]
    assert "was gone already" in capsys.readouterr().out


def cleaner(generation: int, ready: int) -> dict[str, Any]:
    status = {"observedGeneration": generation, "desiredNumberScheduled": 2, "numberReady": ready}
    return {"metadata": {"generation": 1}, "status": status}


def test_nodes_are_waited_for_until_each_is_clean() -> None:
    time = Time()
    api = Api(cleaner=[cleaner(0, 2), cleaner(1, 0), cleaner(1, 1), cleaner(1, 2)])
    assert uninstall.after(api, "asr", time.clock()) == 0  # type: ignore[arg-type]
    assert time.now == 6
    assert uninstall.after(Api(cleaner=[cleaner(1, 1)]), "asr", time.clock()) == 1  # type: ignore[arg-type]


class Protected(Api):
    """Each deletion is refused at first, by a policy that was deleted a moment ago."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def delete(self, where: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ClusterError("ValidatingAdmissionPolicy 'gpu-share-templates' denied request", 403)
        super().delete(where)


def test_a_policy_that_is_deleted_already_is_waited_for_but_not_for_ever() -> None:
    time, api = Time(), Protected(3)
    assert uninstall.after(api, "asr", time.clock()) == 0  # type: ignore[arg-type] # a stand-in
    assert (len(api.deleted), time.now) == (len(uninstall.SECRETS), 6)
    with pytest.raises(ClusterError):
        uninstall.after(Protected(100), "asr", Time().clock())  # type: ignore[arg-type] # a stand-in


@pytest.fixture
def on_node(tmp_path: Path) -> list[str]:
    """A node on which an enforcer was, and something of others; returns the arguments that say where."""
    for file in (
        "state/audit/kills-1.jsonl", "state/checkpoint.json", "state/simulator/driver/x", "run/mps/gpu0/pipe/control",
        "run/status/pod/status.json", "kubelet/plugins/gpu-share.io/dra.sock", "kubelet/plugins/other/dra.sock",
        "kubelet/plugins_registry/gpu-share.io-reg.sock", "kubelet/plugins_registry/other-reg.sock",
        "cdi/gpu-share.io-1234.json", "cdi/nvidia.json",
    ):  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    places = {"state": "state", "run": "run", "kubelet-root": "kubelet", "cdi-root": "cdi"}
    return ["uninstall", "node", "--timeout=0", *(f"--{name}={tmp_path / at}" for name, at in places.items())]


def left(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


OTHERS = {"kubelet/plugins/other/dra.sock", "kubelet/plugins_registry/other-reg.sock", "cdi/nvidia.json"}
STATE = {"state/audit/kills-1.jsonl", "state/checkpoint.json", "state/lock"}


def test_of_a_nodes_files_ours_go_and_the_audit_log_stays(on_node: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        assert cli.main(on_node) == 0
        assert left(tmp_path) == OTHERS | STATE
    assert (tmp_path / "run").is_dir(), "it is a mount"


def test_the_audit_log_goes_only_when_told_to(on_node: list[str], tmp_path: Path) -> None:
    assert cli.main([*on_node, "--remove-state"]) == 0
    assert left(tmp_path) == OTHERS


def test_nothing_goes_while_the_enforcer_is_there(
    on_node: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left(tmp_path)
    with lock.acquire_lock(tmp_path / "state"):
        assert cli.main(on_node) == 1
    assert left(tmp_path) == before | {"state/lock"}
    assert "another enforcer" in capsys.readouterr().out
