"""``gpu-share report`` asks a real Prometheus, with series of some hours and the chart's rules."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare_cli import prometheus
from gpushare_cli.advise.command import peaks
from gpushare_cli.main import main
from gpushare_cli.prometheus import JOB, matcher
from tests.integration.processes.containers import wait_for
from tests.integration.processes.monitored import chart
from tests.support import helm
from tests.support.prometheus import Prometheus, running
from tests.support.promtool import need, promtool

pytestmark = pytest.mark.controlplane  # helm, promtool and prometheus, which make integration brings

GIB: Final = 2**30
MARCH: Final = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
HOUR: Final = 3600
FIRST, LAST = MARCH - 6 * HOUR, MARCH + 12 * HOUR
"""Of the series. What is before March is not March's."""
SCRAPE: Final = 30
Amount = Callable[[float], float | None]
"""GiB at so many hours after the beginning of March; ``None``: no sample."""


def tts_used(hours: float) -> float | None:
    if hours < 0:
        return 7
    return 2 if hours < 4 else 10 if hours < 6 else None


CONTAINERS: Final[dict[tuple[str, str], tuple[Amount, Amount]]] = {
    ("asr", "tts-0"): (lambda hours: 8 if hours < 8 else None, tts_used),  # over its quota for two hours, blind for two
    ("asr", "stt-0"): (lambda hours: 4 if 1 <= hours < 3 else None, lambda hours: 1 if 1 <= hours < 3 else None),
    ("llm", "chat-0"): (lambda _: 16, lambda _: 16),
}
"""Reserved and used of each."""
KILLS: Final[dict[tuple[str, str], Amount]] = {
    # Two before March, three in it; then the enforcer starts again, and one more.
    ("asr", "gpu-1"): lambda hours: 2 if hours < 1 else 5 if hours < 5 else 0 if hours < 7 else 1,
    ("asr", "gpu-2"): lambda hours: 0 if hours < 11 else 1,
    ("llm", "gpu-1"): lambda _: 9,
}
"""By namespace and node: what the enforcer of a node counted."""


PEAKS: Final = (
    ("gpu-share-enforcer", "asr", "tts-gone", 9000), ("gpu-share-enforcer", "llm", "chat-0", 16000),
    ("sidecar", "asr", "tts-gone", 99000),
)  # fmt: skip
"""Job, namespace, pod, MiB: of pods that are gone after an hour."""


def samples(name: str, labels: str, amount: Amount, unit: int = 1) -> Iterator[str]:
    for at in range(FIRST, LAST + 1, SCRAPE):
        value = amount((at - MARCH) / HOUR)
        if value is not None:
            yield f"{name}{{{labels}}} {value * unit} {at}"


def written() -> str:
    """Write the series as OpenMetrics: those of enforcers, and of a sidecar that a tenant forged."""
    enforcer, lines = 'job="gpu-share-enforcer"', list[str]()
    for kind in (0, 1):
        name = f"gpu_share_container_memory_{('reserved', 'used')[kind]}_bytes"
        lines += [f"# TYPE {name} gauge"]
        for (namespace, pod), amounts in CONTAINERS.items():
            where = f'namespace="{namespace}",pod="{pod}",container="model",gpu="GPU-0"'
            lines += samples(name, f"{enforcer},{where}", amounts[kind], GIB)
        lines += samples(name, 'job="sidecar",namespace="llm",pod="x",container="y",gpu="GPU-0"', lambda _: 99, GIB)
    name = "gpu_share_container_memory_peak_bytes"
    lines += [f"# TYPE {name} gauge"]
    for job, namespace, pod, mib in PEAKS:
        where = f'job="{job}",namespace="{namespace}",pod="{pod}",container="model"'
        lines += samples(name, where, lambda hours, mib=mib: mib if hours < 1 else None, 2**20)  # type: ignore[misc] # bound now
    lines += ["# TYPE gpu_share_namespace_kills counter"]
    for (namespace, node), amount in KILLS.items():
        lines += samples("gpu_share_namespace_kills_total", f'{enforcer},namespace="{namespace}",node="{node}"', amount)
    lines += ["# TYPE up gauge", *samples("up", enforcer, lambda hours: None if 9 <= hours < 10 else 1), "# EOF"]
    return "\n".join(lines) + "\n"


def succeed(*arguments: str, folder: Path) -> None:
    said = promtool(*arguments, folder=folder)
    assert "exit code" not in said, said


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    helm.need()
    folder = tmp_path_factory.mktemp("report")
    rules = {"groups": [each for each in chart("PrometheusRule")["spec"]["groups"] if "report" in each["name"]]}
    (folder / "series").write_text(written())
    (folder / "report.json").write_text(json.dumps(rules))
    succeed("tsdb", "create-blocks-from", "openmetrics", "series", "data", folder=folder)
    with running(need("prometheus"), folder, (), {"groups": []}, "--storage.tsdb.retention.time=100y") as server:
        wait_for(lambda: server.answers("vector(1)"), 30)
        succeed(
            "tsdb", "create-blocks-from", "rules", f"--start={FIRST}", f"--end={LAST}", "--eval-interval=1m",
            f"--url=http://127.0.0.1:{server.port}", "--output-dir=data", "report.json", folder=folder,
        )  # fmt: skip
    with running(need("prometheus"), folder, (), {"groups": []}, "--storage.tsdb.retention.time=100y") as server:
        wait_for(lambda: server.answers("vector(1)"), 30)
        yield server


def hours(namespace: str, amount: Callable[[float, float | None], float | None]) -> float:
    """Add up GiB hours of a namespace in March, in seconds; ``amount`` is of reserved and used."""
    total = 0.0
    for (of, _), (reserved, used) in CONTAINERS.items():
        for second in range(0, 12 * HOUR, 10) if of == namespace else ():
            held = reserved(second / HOUR)
            total += 0 if held is None else amount(held, used(second / HOUR)) or 0
    return total * 10 / HOUR


def used_of(_: float, used: float | None) -> float | None:
    return used


def idle_of(reserved: float, used: float | None) -> float | None:
    return None if used is None else max(0.0, reserved - used)


def test_a_month_has_the_hours_and_kills_of_its_series(server: Prometheus, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{server.port}"
    code = main(["report", "--month=2026-03", "--prometheus", url, "-o", "json"])
    out, err = capsys.readouterr()
    found: dict[str, Any] = {each["namespace"]: each for each in json.loads(out)}
    assert found.keys() == {"asr", "llm"}, err
    for namespace, each in found.items():
        # A sample of the rules sees the five minutes before it: where a series ends, that is what a sum has too much.
        ended = 5 / 60 * 12 if namespace == "asr" else 0
        for key, amount in {
            "reservedGiBHours": lambda reserved, _: reserved, "usedGiBHours": used_of, "idleGiBHours": idle_of
        }.items():  # fmt: skip
            wanted = hours(namespace, amount)
            assert wanted > 0 or key == "idleGiBHours"
            assert wanted - 0.3 <= each[key] <= wanted + 0.3 + ended, (key, namespace)
    assert (found["asr"]["kills"], found["llm"]["kills"]) == (5, 0)
    assert code == 1
    recorded = float(err.partition("Prometheus has ")[2].partition(" ")[0])
    assert 11 <= recorded < 11.2, "12 hours, without the one in which no enforcer was up"


def test_peaks_of_two_weeks_are_those_of_enforcers_also_of_pods_that_are_gone(server: Prometheus) -> None:
    client, now = prometheus.Prometheus(f"http://127.0.0.1:{server.port}"), LAST + 13 * 24 * HOUR
    both = {("asr", "tts-gone", "model"): 9000, ("llm", "chat-0", "model"): 16000}
    assert peaks(client, "", now) == both
    assert peaks(client, "asr", now) == {("asr", "tts-gone", "model"): 9000}
    assert peaks(client, "", now + 2 * 24 * HOUR) == {}


def test_a_curve_has_the_points_of_a_window(server: Prometheus) -> None:
    client = prometheus.Prometheus(f"http://127.0.0.1:{server.port}")
    selector = client.selector("gpu_share_container_memory_used_bytes", JOB, matcher("pod", "tts-0"))
    (found,) = client.between(selector, MARCH + 3.5 * HOUR, MARCH + 4.5 * HOUR, 900)
    assert [(when - MARCH, value / GIB) for when, value in found.points] == [
        (12600, 2), (13500, 2), (14400, 10), (15300, 10), (16200, 10)
    ]  # fmt: skip
