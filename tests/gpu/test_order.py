"""A second run on a driver takes what is missing, then what changed."""

from dataclasses import replace
from typing import Any

from tests.gpu.kit.order import worth
from tests.gpu.kit.registry import experiments

KNOWN = experiments()


def run(driver: str = "580.1", **verdicts: str) -> dict[str, Any]:
    names = {each.name: each.hypothesis for each in KNOWN}
    results = [
        {"experiment": name, "hypothesis": names[name], "verdict": verdict} for name, verdict in verdicts.items()
    ]
    return {"driver": driver, "results": results}


def test_what_this_driver_never_answered_comes_first_in_its_order() -> None:
    assert worth(KNOWN, [], "580.1") == list(KNOWN)
    assert worth(KNOWN, [run("570.1", H1="holds")], "580.1") == list(KNOWN)
    left = worth(KNOWN, [run(H1="holds", H9="not-measured"), run(H6="fails")], "580.1")
    assert {"H1", "H6"}.isdisjoint(each.name for each in left)
    assert [each.name for each in left] == [each.name for each in KNOWN if each.name not in {"H1", "H6"}]


def test_what_asks_something_else_now_comes_last() -> None:
    measured = run(**{each.name: "holds" for each in KNOWN if each.name != "H8"})
    changed = [replace(each, hypothesis="x") if each.name == "H1" else each for each in KNOWN]
    assert [each.name for each in worth(changed, [measured], "580.1")] == ["H8", "H1"]
