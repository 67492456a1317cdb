"""How much memory a workload should ask for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.quota.from_claims import parse_mib
from gpushare.kube_client import KubeClient
from gpushare_cli.advise import command
from gpushare_cli.advise.command import Amounts, Measured, advise, measured
from gpushare_cli.explain.sizes import sufficient_mib
from gpushare_cli.main import main
from tests.support.prometheus_api import Api
from tests.unit.gpushare_cli.audit_logs import write
from tests.unit.gpushare_cli.ui.fleets import REPORTER, Logged, Watched, fleet, forbidden, pod

DAY = 24 * 3600.0
ONE = Measured(
    namespace="asr", workload="Deployment tts", container="model", annotation="gpu-share.io/memory",
    amounts=Amounts(reserved_mib=16384, peak_mib=5000), seconds=2 * DAY,
)  # fmt: skip


def of(*amounts: Amounts, **more: Any) -> list[Measured]:
    return [replace(ONE, amounts=each, **more) for each in amounts]


@pytest.mark.parametrize(
    ("found", "write", "frees", "why"),
    [
        (of(Amounts(reserved_mib=16384, peak_mib=5000)), "6Gi", 10240, "and a margin of 1144Mi"),
        (of(*[Amounts(reserved_mib=16384, peak_mib=each) for each in (100, 9000)]), "10Gi", 12288, "peak of 9000Mi"),
        (of(Amounts(reserved_mib=16384, peak_mib=0)), "512Mi", 15872, "peak of 0"),
        (of(Amounts(reserved_mib=6144, peak_mib=5000)), "", 0, "fits"),
        (of(Amounts(reserved_mib=4096, peak_mib=5000)), "6Gi", -2048, "reserves less"),
        (of(Amounts(reserved_mib=16384, peak_mib=5000, refused=True)), "", 0, "never advised"),
        (of(Amounts(reserved_mib=4096, peak_mib=5000, refused=True)), "6Gi", -2048, "reserves less"),
        (of(*[Amounts(reserved_mib=16384, peak_mib=9, refused=each) for each in (True, False)]), "", 0, "never"),
        (of(Amounts(reserved_mib=16384, peak_mib=None)), "", 0, "not known"),
        (of(Amounts(reserved_mib=16384, peak_mib=9), Amounts(reserved_mib=16384, peak_mib=None)), "", 0, "not known"),
        (of(Amounts(reserved_mib=16384, peak_mib=9), seconds=60.0), "", 0, "0.0 h, and a peak of 24.0 h"),
        (of(Amounts(reserved_mib=512, peak_mib=600), seconds=60.0), "1Gi", -512, "reserves less"),
    ],
)
def test_advice_is_the_peak_and_a_margin_and_never_less_after_a_kill(
    found: list[Measured], write: str, frees: int, why: str
) -> None:
    (advised,) = advise(found, DAY)
    assert (advised.write.partition(": ")[2], advised.frees_mib) == (write, frees)
    assert why in advised.why


@given(
    reserved=st.integers(512, 2**17), peak=st.integers(0, 2**17), refused=st.booleans(), seconds=st.floats(0, 10 * DAY)
)  # fmt: skip
def test_what_is_advised_holds_the_peak_and_is_less_only_where_nothing_was_refused(
    reserved: int, peak: int, *, refused: bool, seconds: float
) -> None:
    (advised,) = advise(of(Amounts(reserved_mib=reserved, peak_mib=peak, refused=refused), seconds=seconds), DAY)
    assert advised.advised_mib >= min(reserved, sufficient_mib(peak))
    if refused or peak > reserved or seconds < DAY:
        assert advised.advised_mib >= reserved
    if advised.write:
        assert parse_mib(advised.write.partition(": ")[2]) == advised.advised_mib


def owned(name: str, kind: str = "ReplicaSet", owner: str = "tts-7f9c", **labels: str) -> Any:
    made = pod("asr", name, "one")
    made["metadata"] |= {"ownerReferences": [{"kind": kind, "name": owner, "controller": True}], "labels": labels}
    made["status"]["startTime"] = "2026-11-20T00:00:00Z"
    return made


@pytest.mark.parametrize(
    ("killed", "refused"),
    [
        (("asr", "tts-7f9c-x1", "model"), True),
        (("asr", "tts-6aaa-gone", "model"), True),
        (("asr", "tts-7f9c-x1", "other"), False),
        (("llm", "tts-7f9c-x1", "model"), False),
        (("asr", "ttsx-1", "model"), False),
    ],
)
def test_kills_of_earlier_pods_of_a_workload_count(killed: Any, *, refused: bool) -> None:
    uses = {("asr", "tts-7f9c-x1", "model"): Amounts(reserved_mib=8192, peak_mib=10)}
    pods = [owned("tts-7f9c-x1", **{"pod-template-hash": "7f9c"})]
    (found,) = measured(pods, uses, {killed}, 1_790_000_000.0)
    assert (found.workload, found.annotation) == ("Deployment tts", "gpu-share.io/memory")
    assert found.amounts.refused is refused


def test_a_container_that_sigkill_ended_counts_as_refused() -> None:
    uses = {("asr", "a", "model"): Amounts(reserved_mib=8192, peak_mib=10)}
    made = owned("a", "StatefulSet", "a")
    made["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 137}}
    (found,) = measured([made], uses, (), 0.0)
    assert (found.workload, found.amounts.refused) == ("StatefulSet a", True)


@pytest.fixture(name="cluster")
def _cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Logged:
    cluster = Logged()
    cluster.__dict__.update(fleet().__dict__)
    cluster.folders = {"one": tmp_path / "one", "two": tmp_path / "two"}
    for name, folder in cluster.folders.items():
        write(folder, node=name)
    monkeypatch.setattr(KubeClient, "connect", lambda *_: cluster)
    monkeypatch.setattr(command, "namespace_of", lambda *_: "asr")
    return cluster


def asked(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any], str]:
    code = main(["advise", "-o", "json", "--min-age", "0s", *more])
    out, err = capsys.readouterr()
    return code, {each["workload"]: each for each in json.loads(out)}, err


def test_an_operator_is_advised_on_all_namespaces(cluster: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, err = asked(capsys, "-A")
    assert (code, err, sorted(found)) == (0, "", ["Pod asr-0", "Pod llm-0", "Pod tts-0"])
    assert found["Pod asr-0"]["annotation"] == "gpu-share.io/memory: 1280Mi"
    assert main(["advise", "-A"]) == 0
    assert "asr/asr-0 model: keep it: its pods have run for 0.0 h" in capsys.readouterr().out


def test_a_kill_in_the_audit_log_or_in_an_event_keeps_what_a_workload_has(
    cluster: Logged, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {
        "metadata": {"namespace": "asr", "name": "kill"}, "reason": "Killed", "reportingComponent": REPORTER,
        "involvedObject": {"namespace": "asr", "name": "asr-0", "fieldPath": "spec.containers{model}"},
    }  # fmt: skip
    cluster.lists["events"] = [event]
    for more in (("-A",), ("-n", "asr")):
        assert asked(capsys, *more)[1]["Pod asr-0"]["annotation"] == ""


def test_a_tenant_is_advised_on_the_namespace_and_what_is_missing_is_named(
    cluster: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, err = asked(capsys)
    assert (code, err, list(found)) == (0, "", ["Pod asr-0"])
    assert found["Pod asr-0"]["peakMiB"] == 1024
    cluster.refused["events"] = forbidden("list", "events", "asr")
    code, _, err = asked(capsys)
    assert (code, "kills are unknown: you may not list events in namespace asr" in err) == (1, True)


@pytest.mark.parametrize(
    ("past", "peak", "refused"),
    [
        ({("asr", "tts-6aaa-gone", "model"): 5000}, 5000, False),
        ({("asr", "tts-7f9c-x1", "model"): 5}, 10, False),
        ({("asr", "tts-6aaa-gone", "model"): 16000}, 10, True),
        ({("asr", "tts-6aaa-gone", "other"): 5000, ("llm", "tts-6aaa-gone", "model"): 5000}, 10, False),
        ({("asr", "ttsx-1", "model"): 5000}, 10, False),
    ],
)
def test_peaks_of_earlier_pods_count_and_what_a_larger_share_held_forbids_less(
    past: Any, peak: int, *, refused: bool
) -> None:
    uses = {("asr", "tts-7f9c-x1", "model"): Amounts(reserved_mib=8192, peak_mib=10)}
    pods = [owned("tts-7f9c-x1", **{"pod-template-hash": "7f9c"})]
    (found,) = measured(pods, uses, (), 1_790_000_000.0, past)
    assert (found.amounts.peak_mib, found.amounts.refused) == (peak, refused)


def test_prometheus_has_the_peaks_of_two_weeks(cluster: Watched, api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    series = {"namespace": "asr", "pod": "asr-0", "container": "model"}
    api.answers = {"memory_peak_bytes": [(series, [0, str(3000 * 2**20)])]}
    code, found, err = asked(capsys, "--prometheus", api.url)
    assert (code, err, found["Pod asr-0"]["peakMiB"]) == (0, "", 3000)
    (query,) = [each["query"] for each in api.asked]
    assert '{job="gpu-share-enforcer",namespace="asr"}[14d]' in query
    api.status = 503
    assert main(["advise", "--prometheus", api.url]) == 1
    assert f"Prometheus at {api.url}: HTTP 503" in capsys.readouterr().err
