"""Would it fit: the webhook's code and that of ``placement`` answer the form."""

import pytest

from gpushare_cli.placement.placing import rooms
from tests.support.ui import words
from tests.unit.gpushare_cli.placement.test_placing import asking, cluster, holding
from tests.unit.gpushare_cli.ui.fleets import client, fleet, opened


@pytest.mark.parametrize(
    ("mib", "number", "held", "pods"),
    [
        (4096, 1, (), {"one": 4, "two": 2 + 3}),
        (4096, 1, [holding("one", 0, 13000)], {"two": 5}),
        (8192, 1, (), {"one": 2, "two": 1 + 1}),
        (4096, 2, (), {"two": 2}),
        (1024, 2, [holding("two", 0, 7168)], {"two": 1}),
        (1, 1, [holding("two", 0, 1, times=40)], {"one": 48, "two": 8 + 48}),
    ],
)
def test_as_many_pods_fit_as_memory_and_clients_allow(mib: int, number: int, held: list[object], pods: object) -> None:
    whole = cluster(held, one=(16384,), two=(8192, 12288))
    for device in (device for each in whole.slices or () for device in each["spec"]["devices"]):
        device["attributes"]["mode"] = {"string": "time-slicing"}  # several GPUs are for these alone
    found = rooms(asking(mib, gpus=number), whole, ("one", "two"))
    assert {each.node: each.pods for each in found if each.pods} == pods


def test_nodes_that_the_scheduler_would_not_take_have_no_room() -> None:
    assert rooms(asking(4096), cluster(one=(16384,)), ()) == []


def test_the_form_is_answered_with_nodes_copies_and_what_stands_in_the_way() -> None:
    browser = client(fleet())
    text = words(opened(browser, "fit.html", memory="4Gi", compute="25%"))
    # 4 GiB and 25 % are left of GPU 0 of node one; the others are empty
    assert "7 such pods fit now" in text
    assert "one 5 gpu-0 : 1 (4Gi free), gpu-1 : 4 (16Gi free)" in text
    large = words(opened(browser, "fit.html", memory="12Gi"))
    assert "1 such pod fits now" in large
    assert "the largest GPU there has 8Gi" in large
    chosen = words(opened(browser, "fit.html", memory="4Gi", selector="kubernetes.io/hostname=two"))
    assert "2 such pods fit now" in chosen
    assert "one: excluded by spec.nodeSelector (kubernetes.io/hostname=two) of the pod" in chosen


def test_what_the_webhook_would_refuse_is_refused_in_its_words() -> None:
    text = words(opened(client(fleet()), "fit.html", memory="4 GB"))
    assert "The webhook would refuse such a pod:" in text
    assert "gpu-share.io/memory" in text


def test_without_rights_it_is_not_known_where_a_share_fits() -> None:
    cluster = fleet()
    cluster.hidden |= {"resourceslices"}
    text = words(opened(client(cluster), "fit.html", memory="4Gi"))
    assert "you may not list resourceslices in the cluster" in text
    assert "fit now" not in text
