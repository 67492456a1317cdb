"""The table of a journal: medians and worst cases by part, and a page that gets them between its marks."""

import pytest

from tests.rehearsal.journal import Entry, Noticed
from tests.rehearsal.table import BEGIN, END, both, table, written

PARTS = {"webhook-deleted": "webhook", "webhook-killed": "webhook", "certs-deleted": "certs", "never": "node"}


def entry(number: int, name: str, healed: float | None, **more: float) -> Entry:
    noticed = Noticed(refused=more.get("refused", 0.0), daemons=int(more.get("daemons", 0)))
    found = () if healed is not None else ("tenant a/b was lost",)
    return Entry(
        seed=number % 2 + 3, number=number, name=name, seconds=30.0, healed=healed, noticed=noticed, violations=found
    )


def test_a_part_has_median_and_worst_of_all_its_steps() -> None:
    found = table(
        [
            entry(0, "webhook-deleted", 10.0, refused=1.0),
            entry(1, "webhook-killed", 12.0, refused=9.4, daemons=1),
            entry(2, "webhook-killed", None, refused=2.0),
            entry(3, "certs-deleted", 10.0),
            entry(4, "retired step", 10.0),
        ],
        PARTS,
        {"webhook": "keep two"},
    ).splitlines()
    assert [line.split(" | ")[0] for line in found[2:4]] == ["| webhook", "| certs"]
    assert found[2].split(" | ")[1:4] == ["keep two", "3", "2, worst 9"]
    assert found[3].split(" | ")[1] == "nothing"
    assert found[2].split(" | ")[7] == "1"
    assert found[2].endswith("| 11, worst 12 |")
    assert found[-1] == "4 steps of the seeds 3, 4 on `--nodes 1`; in 1 of them something did not hold."


def test_amounts_that_agree_are_one_number() -> None:
    assert (both([1.2, 0.9]), both([]), both([1, 2, 30])) == ("1", "never", "2, worst 30")


def test_a_page_gets_the_table_between_its_marks_and_one_without_marks_is_refused() -> None:
    page = f"above\n{BEGIN}old\n{END}\nbelow\n"
    assert written(page, "new\n") == f"above\n{BEGIN}new\n{END}\nbelow\n"
    assert written(written(page, "new\n"), "new\n") == written(page, "new\n")
    with pytest.raises(LookupError, match="has no lines"):
        written("nothing", "new\n")
