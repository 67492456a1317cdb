"""What a fake says never gets into the documentation, and the documentation is what the committed results say."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.fakes.gpu.state import Machine
from tests.gpu.kit import report
from tests.gpu.kit.registry import experiments
from tests.gpu.kit.result import fails, holds, not_measured


def run(**changes: Any) -> dict[str, Any]:
    results = [
        holds("each is listed", error_percent=0.4).of("H1", "NVML | lists all"),
        fails("escaped", table={"unset": 3584}).of("H2", "limits hold"),
        not_measured("mode change not allowed").of("H7", "locked out"),
    ]
    real = {
        "format": 1, "backend": "real", "gpu": "GPU-0c1d2e3f-0000-4000-8000-123456789abc", "driver": "580.159.04",
        "world": {}, "date": "2026-12-01",
        "facts": {"model": "NVIDIA H200", "memory_mib": 143000, "known": {"simulated": [], "sandbox": "Docker"}},
        "results": [asdict(each) for each in results],
    }  # fmt: skip
    return {**real, **changes}


def test_real_results_become_a_table() -> None:
    text = report.table(run())
    assert "NVIDIA H200, 143000 MiB, driver 580.159.04" in text
    assert "| H1 | NVML \\| lists all | holds | each is listed (error_percent 0.4) |" in text
    assert '| H2 | limits hold | **fails** | escaped (table {"unset": 3584}) |' in text
    assert "not measured | mode change not allowed" in text


def test_runs_of_a_driver_complement_each_other() -> None:
    later = run(date="2026-12-02", gpu="GPU-0c1d2e3f-0000-4000-8000-123456789abd", results=[
        asdict(not_measured("no MPS").of("H8", "clients")), asdict(holds("locked out").of("H7", "locked out")),
    ])  # fmt: skip
    first = run(results=[asdict(holds("48 served").of("H8", "clients")), *run()["results"][2:]])
    text = report.document([later, first], experiments())
    assert text.count("## NVIDIA H200, driver 580.159.04") == 1
    assert "2 runs on 2 cards" in text
    assert "| H8 | clients | holds | 48 served (2026-12-01) |" in text
    assert "| H7 | locked out | holds | locked out (2026-12-02) |" in text
    assert "Not yet measured with this driver: " in text


SIMULATED: dict[str, dict[str, Any]] = {
    "its backend says so": {"backend": "fake"},
    "it has no backend": {"backend": None},
    "a simulator's library was loaded": {"facts": {"known": {"simulated": ["libcuda.so.1 is a simulator's"]}}},
    "it does not say what was loaded": {"facts": {"known": {}}},
    "it has a world of its own": {"world": {"shm_needed": "0"}},
    "its GPU is a simulated one": {"gpu": Machine.named("single-16g").gpus[0].uuid},
    "it names no driver": {"driver": ""},
    "it names no GPU": {"gpu": ""},
}


@pytest.mark.parametrize("sign", SIMULATED)
def test_a_fakes_results_are_refused_by_each_sign_alone(sign: str) -> None:
    with pytest.raises(report.SimulatedError, match="never get into the documentation"):
        report.document([run(), run(**SIMULATED[sign])], experiments())


def test_a_fakes_own_table_says_what_it_is() -> None:
    assert "says nothing about hardware" in report.table(run(backend="fake"))


def test_without_results_every_experiment_is_reported_to_be_not_yet_measured() -> None:
    text = report.document([], experiments())
    for each in experiments():
        assert f"| {each.name} | {each.title} |" in text
    assert text.count("| not yet measured |") == len(experiments())
    assert "python3 tests/gpu/run.py core" in text


def test_the_document_is_what_the_committed_results_say() -> None:
    made = report.document(report.committed(), experiments())
    assert report.DOCUMENT.read_text() == made, "run: python tests/gpu/run.py report"


def test_a_hypothesis_cannot_break_the_table() -> None:
    broken = replace(holds("a\nb | c"), experiment="H1", hypothesis="x\n\ny")
    assert "| H1 | x y | holds | a b \\| c |" in report.table(run(results=[asdict(broken)]))
