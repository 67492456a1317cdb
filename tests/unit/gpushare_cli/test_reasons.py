"""``gpu-share reasons``."""

import json

import pytest

from gpushare.reason_table import BY_REASON, TABLE
from gpushare.reasons import Reason
from gpushare_cli.main import main


def test_every_reason_has_a_line_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reasons"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["REASON", "MEANING"]
    assert [tuple(line.split(maxsplit=1)) for line in lines] == [(row.reason, row.meaning) for row in TABLE]


@pytest.mark.parametrize("word", ["GpuMemoryInUse", "gpumemoryinuse"])
def test_one_reason_has_what_to_do_and_where_it_appears(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reasons", word]) == 0
    row = BY_REASON[Reason.GPU_MEMORY_IN_USE]
    assert capsys.readouterr().out.splitlines() == [
        f"GpuMemoryInUse: {row.meaning}",
        f"What to do: {row.action}",
        "Appears in: Event on the pod, metric label, log.",
    ]


def test_a_reason_that_calls_for_nothing_has_no_action(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reasons", Reason.ENFORCER_STOPPED]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_json_has_the_whole_table_or_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reasons", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["reasons", Reason.OVER_QUOTA, "-o", "json"]) == 0
    one = json.loads(capsys.readouterr().out)
    row = BY_REASON[Reason.OVER_QUOTA]
    assert one == {
        "reason": "OverQuota",
        "meaning": row.meaning,
        "action": row.action,
        "places": ["Event on the pod", "answer to a resize", "log"],
        "anchor": "overquota",
    }
    assert len(rows) == len(TABLE)
    assert one in rows


@pytest.mark.parametrize(("word", "meant"), [("OverQouta", "OverQuota"), ("x" * 5000, ""), ("", "")])
def test_an_unknown_reason_is_refused_with_the_nearest(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reasons", word]) == 2
    printed = capsys.readouterr().err
    assert f"did you mean {meant}" in printed
    assert len(printed) < 300
