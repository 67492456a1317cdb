"""``gpu-share report``: figures as table, JSON and CSV, and what it says where Prometheus lacks some."""

import csv
import io
import json
from typing import Any

import pytest

from gpushare_cli.main import main
from tests.support.prometheus_api import Api

RESERVED, USED, IDLE = (f"namespace:gpu_share_memory_{each}_bytes:sum" for each in ("reserved", "used", "idle"))
WHOLE: list[tuple[dict[str, str], Any]] = [({}, [0, str(31 * 24 * 60)])]
ASR, LLM = {"namespace": "asr"}, {"namespace": "llm"}


@pytest.fixture(autouse=True)
def _answers(api: Api) -> None:
    api.answers = {
        RESERVED: [(LLM, [0, "7.5"]), (ASR, [0, "1488.00049"])], USED: [(ASR, [0, "1000"])],
        IDLE: [(ASR, [0, "488"])], "kills_total": [(ASR, [0, "3"]), ({"namespace": "idle"}, [0, "0"])],
        "enforcers_up": WHOLE,
    }  # fmt: skip


def report(api: Api, *more: str) -> int:
    return main(["report", "--month", "2026-03", "--prometheus", api.url, *more])


def test_the_three_forms_have_the_same_figures(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(api, "-o", "json") == 0
    asr = {
        "month": "2026-03", "namespace": "asr", "reservedGiBHours": 1488.0, "usedGiBHours": 1000.0,
        "idleGiBHours": 488.0, "kills": 3,
    }  # fmt: skip
    llm = {**asr, "namespace": "llm", "reservedGiBHours": 7.5, "usedGiBHours": 0.0, "idleGiBHours": 0.0, "kills": 0}
    assert json.loads(capsys.readouterr().out) == [asr, llm]
    assert report(api, "-o", "csv") == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert rows == [{key: str(value) for key, value in each.items()} for each in (asr, llm)]
    assert report(api) == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()[1:3]] == [
        ["asr", "1488.0", "1000.0", "488.0", "3"], ["llm", "7.5", "0.0", "0.0", "0"]
    ]  # fmt: skip
    assert err == ""
    assert {(each["time"], f"[{31 * 86400}s]" in each["query"]) for each in api.asked} == {("1775001600.000", True)}


def test_hours_without_a_record_and_warnings_are_said(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.answers["enforcers_up"] = [({}, [0, "600"])]
    api.more = {"warnings": ["a store did not answer"]}
    assert report(api) == 1
    err = capsys.readouterr().err
    assert "2026-03: Prometheus has 10.0 of 744.0 hours" in err
    assert "gpu-share: a store did not answer" in err


def test_without_series_nothing_is_made_up(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.answers = {}
    assert report(api) == 1
    out, err = capsys.readouterr()
    assert (out, "monitoring.prometheusRule.enabled" in err) == ("no namespace reserved GPU memory\n", True)
    assert report(api, "-o", "csv") == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_two_clusters_are_not_added_up(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.answers[RESERVED] = [({**ASR, "cluster": each}, [0, "5"]) for each in "ab"]
    assert report(api) == 1
    assert "series for namespace asr, which differ in cluster; name one with --prometheus-label" in (
        capsys.readouterr().err
    )
    api.answers[RESERVED].pop()
    assert report(api, "--prometheus-label", "cluster=a") == 0
    assert ['cluster="a"' in each["query"] for each in api.asked] == [False, *[True] * 5]


@pytest.mark.parametrize("month", ["2026", "2026-13", "9999-01", "march"])
def test_what_is_not_a_month_is_refused(month: str, api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(api, "--month", month) == 2
    assert "write for example" in capsys.readouterr().err


def test_the_current_month_is_asked_up_to_now_and_a_server_has_to_be_named(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report"]) == 2
    assert "--prometheus URL" in capsys.readouterr().err
    monkeypatch.setenv("GPU_SHARE_PROMETHEUS_URL", api.url)
    main(["report"])
    seconds: Any = api.asked[0]["query"].partition("[")[2].partition("s]")[0]
    assert float(seconds) < 31 * 86400 + 1
