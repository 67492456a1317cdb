"""What the pages of ``gpu-share ui`` show, as operator, as tenant, and without rights."""

import re
import time
from typing import Any

import pytest

from gpushare.errors import ClusterError, GpuShareError
from gpushare_cli.ui import cache as polling
from gpushare_cli.ui import sources
from gpushare_cli.ui.cache import WINDOW, Cached, Changes, History, Polled
from gpushare_cli.ui.pages import Block, blocks, curve
from tests.integration.controlplane import objects
from tests.support.ui import words
from tests.unit.gpushare_cli.ui.fleets import (
    TENANTS,
    answer,
    claim,
    client,
    fleet,
    forbidden,
    opened,
    pod,
    pod_status,
    report,
    use,
)  # fmt: skip


def test_the_fleet_has_each_gpu_with_what_is_reserved_used_and_wrong() -> None:
    browser = client(fleet())
    text = words(opened(browser, "fleet.html"))
    assert "3 GPUs on 2 of 2 nodes. 12Gi of 40Gi are reserved." in text
    assert "12Gi 12.5Gi 0 4Gi of 16Gi 3 1 over" in text
    assert "gpu-1 NVIDIA A100-SXM4-16GB 0 0 0 16Gi of 16Gi 0 ok" in text
    assert [each for each in TENANTS if f"{each} 4Gi" not in text] == []


@pytest.mark.parametrize(
    ("query", "nodes"),
    [
        ({"node": "two"}, ["two"]),
        ({"namespace": "asr"}, ["one"]),
        ({"model": "a100"}, ["one", "two"]),
        ({"model": "h100"}, []),
        ({"page": "9"}, ["one", "two"]),
        ({"page": "x"}, ["one", "two"]),
    ],
)
def test_the_fleet_is_filtered_by_node_model_and_namespace(query: dict[str, str], nodes: list[str]) -> None:
    html = opened(client(fleet()), "fleet.html", **query)
    assert re.findall(r'aria-label="Node ([a-z]+)"', html) == nodes


def test_what_check_finds_wrong_stands_above_the_fleet_with_the_remedy() -> None:
    cluster = fleet()
    browser = client(cluster)
    opened(browser, "fleet.html")
    time.sleep(0.2)
    assert "Problems" not in words(opened(browser, "fleet.html"))
    report(cluster.lists["resourceslices"][1], "the MPS daemon does not answer")
    other = client(cluster)
    until(lambda: "Problems" in words(opened(other, "fleet.html")))
    text = words(opened(other, "fleet.html"))
    assert "wrong enforcer reports : two: the MPS daemon does not answer correct what the line names" in text


def test_only_the_enforcers_of_nodes_that_are_shown_are_asked() -> None:
    cluster = fleet()
    browser = client(cluster)
    opened(browser, "fleet.html", node="one")
    opened(browser, "gpu_one_gpu-0.html")
    assert {name for name, _ in cluster.ran} == {"enforcer-one"}
    opened(browser, "fleet.html")
    until(lambda: "enforcer-two" in {name for name, _ in cluster.ran})


def test_an_enforcer_that_does_not_answer_is_a_sentence_and_the_rest_is_shown() -> None:
    cluster = fleet()
    cluster.answers["enforcer-one"] = b"", ClusterError("no route to host", 500)
    text = words(opened(client(cluster), "fleet.html", node="one"))
    assert "no route to host" in text
    assert "12Gi N/A 0 4Gi of 16Gi 3 use not read" in text


def test_a_gpu_has_its_shares_and_who_is_over_and_when_it_is_killed() -> None:
    text = words(opened(client(fleet()), "gpu_one_gpu-0.html"))
    assert "tts/tts-0 model 4Gi 25% 9Gi 4Gi 9Gi 2 over 3.5 s" in text
    assert "asr/asr-0 model 4Gi 25% 1Gi 4Gi 1Gi 2 ok -" in text


def test_a_share_that_borrows_shows_how_much_and_its_limit() -> None:
    cluster = fleet()
    lent = use("asr", "asr-0", "GPU-one-0", 9216, limitMib=12_288, borrowedMib=5120)
    cluster.enforcer("one", answer("one", lent, used=9216, gpus=2))
    text = words(opened(client(cluster), "gpu_one_gpu-0.html"))
    assert "asr/asr-0 model 4Gi 25% 9Gi, 5Gi borrowed 4Gi, limit 12Gi 9Gi 2 ok -" in text
    cluster.answers["asr-0"] = pod_status(9216, limitMiB=12_288), None
    assert "asr-0 model one 9Gi, 5Gi borrowed 9Gi 4Gi" in words(opened(client(cluster), "namespace_asr.html"))


def test_a_namespace_has_its_pods_and_why_some_wait() -> None:
    text = words(opened(client(fleet()), "namespace_asr.html"))
    assert "asr-0 model one 1Gi 1Gi 4Gi 0 0 ok" in text
    assert "Waiting for a node waits : Pending" in text


def test_a_pod_has_what_explain_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpushare.kube_client import KubeClient  # noqa: PLC0415
    from gpushare_cli.main import main  # noqa: PLC0415

    cluster = fleet()
    monkeypatch.setattr(KubeClient, "connect", lambda *_: cluster)
    main(["explain", "asr/asr-0"])
    said = [re.sub(r"\d+ s ago", "", " ".join(line.split())) for line in capsys.readouterr().out.splitlines()]
    text = re.sub(r"\d+ s ago", "", words(opened(client(cluster), "pod_asr_asr-0.html")))
    assert len(said) > 3
    assert [line for line in said if line not in text and "CONTAINER" not in line] == []


def test_a_tenant_starts_with_the_namespace_and_sees_no_other() -> None:
    cluster = fleet()
    cluster.hidden |= {"nodes", "resourceslices", "resourceclaims", "pods", "events", "daemonsets"}
    browser = client(cluster)
    assert "url=namespace_asr.html" in opened(browser, "")
    assert "asr-0 model one 1Gi" in words(opened(browser, "namespace_asr.html"))
    refused = words(opened(browser, "fleet.html"))
    assert "you may not list resourceslices in the cluster; ask for the ClusterRole gpu-share-operator" in refused


def test_without_rights_each_page_names_the_missing_one() -> None:
    cluster = fleet()
    for kind in ("nodes", "resourceslices", "resourceclaims", "events", "daemonsets", "pods"):
        cluster.refused[kind] = forbidden("list", kind, "asr" if kind == "pods" else "")
    browser = client(cluster)
    text = words(opened(browser, "namespace_asr.html"))
    assert "you may not list pods in namespace asr; ask for the ClusterRole view in namespace asr" in text
    assert "you may not" in words(opened(browser, "fleet.html"))


def test_names_of_others_are_text_and_no_markup() -> None:
    cluster = fleet()
    cluster.add("resourceclaims", claim("asr", "<script>alert(1)</script>", "one", 1, 1024))
    assert "<script>alert" not in opened(client(cluster), "fleet.html") + opened(client(cluster), "gpu_one_gpu-1.html")


def test_each_kind_is_listed_once_and_what_changes_is_shown() -> None:
    cluster = fleet()
    browser = client(cluster)
    for _ in range(3):
        opened(browser, "fleet.html")
        opened(browser, "gpu_one_gpu-0.html")
    followed = [each for each in cluster.listed if each.endswith(("resourceslices", "resourceclaims", "v1/nodes"))]
    assert len(followed) == len(set(followed)) == 3
    cluster.change("ADDED", "resourceclaims", claim("asr", "later", "two", 0, 2048))
    until(lambda: "asr/later" in opened(browser, "gpu_two_gpu-0.html"))
    cluster.change("DELETED", "resourceclaims", claim("asr", "later", "two", 0, 2048))
    until(lambda: "asr/later" not in opened(browser, "gpu_two_gpu-0.html"))


def test_a_lost_connection_is_a_sentence_and_what_was_read_stays() -> None:
    cluster = fleet()
    browser = client(cluster)
    opened(browser, "fleet.html")
    lost = ClusterError("the API server does not answer: refused")
    cluster.refused["nodes"] = lost
    cluster.news["nodes"].put(lost)
    until(lambda: "not current: the API server does not answer: refused" in opened(browser, "fleet.html"))
    assert "3 GPUs on 2 of 2 nodes" in words(opened(browser, "fleet.html"))
    del cluster.refused["nodes"]
    until(lambda: "not current" not in opened(browser, "fleet.html"))


def test_many_nodes_stand_on_several_pages_that_keep_the_filter() -> None:
    cluster = fleet()
    cluster.add("resourceslices", *(objects.resource_slice(f"more-{number:03}", [8192]) for number in range(120)))
    browser = client(cluster)
    html = opened(browser, "fleet.html", node="more", page="2")
    assert re.findall(r'aria-label="Node ([a-z0-9-]+)"', html) == [f"more-{number:03}" for number in range(50, 100)]
    assert "Page 2 of 3. Previous Next" in words(html)
    assert "120 GPUs on 120 of 122 nodes" in words(html)
    assert re.findall(r'href="fleet.html\?([^"]*page=3)"', html) == ["node=more&amp;model=&amp;namespace=&amp;page=3"]


def test_an_event_tells_of_each_change_and_pages_are_read_again_while_they_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polling, "INTEREST", 0.2)
    changes, read = Changes(), list[int]()
    polled = Polled(lambda: read.append(1), 0.05, changes)
    assert changes.wait(0, 0.01) == 0
    polled.get(5.0)
    assert changes.wait(0, 5.0) > 0
    until(lambda: polled.get() is None and len(read) > 2)
    until(lambda: not polled._runs)  # nobody asks
    count = len(read)
    time.sleep(0.2)
    assert len(read) == count
    monkeypatch.setattr(polled, "_read", lambda: time.sleep(0.5))
    assert polled.get() is None, "what was read before the pause is old"
    changes.close()


def test_what_is_read_again_and_is_the_same_makes_no_page_anew_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes()
    values: list[int | GpuShareError] = [1, 1, 1, 2, GpuShareError("a"), GpuShareError("a"), GpuShareError("b")]
    seen = list[int]()

    def read() -> int:
        seen.append(changes.number)
        found = values.pop(0) if len(values) > 1 else values[0]
        if isinstance(found, GpuShareError):
            raise found
        return found

    polled = Polled(read, 0.02, changes)
    polled.get(5.0)
    until(lambda: len(seen) > 8)
    assert seen[:8] == [0, 1, 1, 1, 2, 3, 3, 4]
    monkeypatch.setattr(polling, "KEEP", 0.1)
    until(lambda: changes.number > 5)  # the page that is open has to ask again, or it is taken for closed
    changes.close()


def test_an_answer_that_is_old_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = client(fleet())
    assert "1 over" in words(opened(browser, "fleet.html"))
    monkeypatch.setattr(sources, "OLD_SECONDS", 0.0)
    browser = client(fleet())
    assert "use not read" in words(opened(browser, "fleet.html"))


def test_a_curve_has_the_last_minutes_to_scale() -> None:
    history = History()
    for second in range(4):
        history.add("gpu", 1000.0 + second * 300, 1024 * second)
    history.add("gpu", 1900.0, 4096)
    points = history.of("gpu", 1900.0)
    assert [round(at) for at, _ in points] == [-900, -600, -300, 0]
    drawn = curve(points, WINDOW, 4096)
    assert drawn is not None
    assert (drawn.points.split()[0], drawn.points.split()[-1]) == ("0.0,100.0", "1000.0,25.0")
    assert (drawn.top, drawn.quota_y, curve(points[:1], WINDOW)) == (4096, 0.0, None)


def test_blocks_stand_side_by_side_and_end_with_the_bar() -> None:
    assert blocks(100, [(25, "a", ""), (0, "b", ""), (50, "c", "x"), (90, "d", "")]) == [
        Block(0, 250, "a"), Block(250, 500, "c", "x"), Block(750, 250, "d"),
    ]  # fmt: skip
    assert blocks(0, [(5, "a", "")]) == []


def test_nothing_can_be_written_through_the_sources() -> None:
    made = Cached(fleet(), Changes())  # type: ignore[arg-type]
    for write in (made.create, made.replace, made.patch):
        with pytest.raises(Exception, match="changes nothing"):
            write("/api/v1/pods", pod("asr", "x"))
    with pytest.raises(Exception, match="changes nothing"):
        made.delete("/api/v1/pods")


def until(holds: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
