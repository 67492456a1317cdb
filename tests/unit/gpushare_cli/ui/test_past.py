"""What was before the pages were opened: from Prometheus, where it is given."""

import time

import pytest

from gpushare_cli.prometheus import Prometheus
from gpushare_cli.ui import sources
from gpushare_cli.ui.cache import POINTS, History
from tests.support.prometheus_api import Api
from tests.support.ui import words
from tests.unit.gpushare_cli.ui.fleets import Logged, client, opened

ASR = {"namespace": "asr", "pod": "asr-0", "container": "model", "gpu": "GPU-one-0"}


def test_curves_begin_before_the_page_was_opened(cluster: Logged, api: Api) -> None:
    now = time.time()
    points = [[now - 600 + 15 * each, str(2**30)] for each in range(20)]
    api.answers = {"container_memory_used": [(ASR, points)], "gpu_memory_used": [({"gpu": "GPU-one-0"}, points)]}
    text = opened(client(cluster, prometheus=Prometheus(api.url)), "gpu_one_gpu-0.html")
    assert text.count("<polyline") == 2
    assert {'gpu="GPU-one-0"' in each["query"] for each in api.asked} == {True}
    assert opened(client(cluster), "gpu_one_gpu-0.html").count("<polyline") == 0


def test_a_prometheus_that_does_not_answer_is_named_and_the_page_shows_the_rest(cluster: Logged, api: Api) -> None:
    api.status = 503
    browser = client(cluster, prometheus=Prometheus(api.url))
    for page, shown in (("gpu_one_gpu-0.html", "GPU-one-0"), ("waste.html", "asr /Pod asr-0")):
        text = words(opened(browser, page))
        assert f"only what this page has seen: Prometheus at {api.url}: HTTP 503" in text
        assert shown in text


def test_waste_counts_the_peaks_of_two_weeks(cluster: Logged, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LEAST_AGE", 0.0)
    api.answers = {"memory_peak_bytes": [(ASR, [0, str(2 * 2**30)])]}
    text = words(opened(client(cluster, prometheus=Prometheus(api.url)), "waste.html"))
    assert "asr /Pod asr-0 model 1 4Gi 2Gi 3Gi" in text
    assert "in two weeks" in text


def test_older_points_come_before_the_own_ones_and_take_no_room_from_them() -> None:
    history = History()
    for at in (100.0, 103.0):
        history.add("gpu", at, 7)
    history.begin("gpu", [(90.0, 1), (95.0, 2), (101.0, 9)])
    assert history.of("gpu", 103.0) == [(-13.0, 1), (-8.0, 2), (-3.0, 7), (0.0, 7)]
    for at in range(POINTS):
        history.add("full", float(at + 100), 7)
    history.begin("full", [(90.0, 1)])
    assert history.of("full", 399.0)[0] == (-299.0, 7)
    history.begin("new", [(float(at), 1) for at in range(POINTS + 5)])
    assert history.of("new", 304.0)[0] == (-299.0, 1)
