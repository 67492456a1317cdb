"""Steps follow from the seed alone and cover all of them; the journal survives a torn line and says where to go on."""

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.rehearsal.choice import order, randomness, repeat
from tests.rehearsal.journal import Entry, Journal, Noticed

ONE = "--nodes 1"
NAMES = [f"step-{number}" for number in range(14)]


@given(st.integers(0, 2**32), st.integers(1, 100))
def test_the_same_seed_gives_the_same_steps_and_a_longer_run_begins_with_a_shorter(seed: int, count: int) -> None:
    found = order(NAMES, seed, count)
    assert found == order(list(reversed(NAMES)), seed, count + 20)[:count]
    times = Counter(found)
    assert len(found) == count
    assert max(times.values()) - min(times.get(name, 0) for name in NAMES) <= 1


def test_seeds_differ_and_so_do_steps_of_one_seed() -> None:
    assert len({tuple(order(NAMES, seed, 14)) for seed in range(20)}) == 20
    assert len({randomness(1, number).random() for number in range(20)}) == 20
    assert randomness(1, 5).random() == randomness(1, 5).random()


def test_no_steps_make_no_order() -> None:
    assert order([], 1, 5) == []


def test_the_command_that_repeats_a_step_names_seed_and_number() -> None:
    words = repeat(7, 12, "etcd-restarted").split()
    assert words[-6:] == ["--seed", "7", "--only", "12", "--steps", "etcd-restarted"]
    assert order(["etcd-restarted"], 7, 13)[12] == "etcd-restarted"


def test_a_run_goes_on_behind_its_last_whole_line(tmp_path: Path) -> None:
    journal, other = Journal(tmp_path / "folder" / "journal"), Entry(seed=2, number=0, name="a", seconds=1.0)
    assert (journal.entries(), journal.following(1, ONE)) == ([], 0)
    first = Entry(seed=1, number=0, name="a", seconds=1.5)
    noticed = Noticed(refused=2.5, daemons=1)
    second = Entry(seed=1, number=1, name="b", seconds=2.0, noticed=noticed, violations=("tenant a/b was lost",))
    for each in (first, other, second):
        journal.add(each)
    with (tmp_path / "folder" / "journal").open("a") as file:
        file.write('{"seed": 1, "number": 2, "na')
    assert journal.entries() == [first, other, second]
    assert [journal.following(seed, ONE) for seed in (1, 2, 3)] == [2, 1, 0]
    journal.add(Entry(seed=1, number=0, name="a", seconds=1.5, on="--nodes 2"))
    assert (journal.following(1, ONE), journal.following(1, "--nodes 2")) == (2, 1)
    journal.add(third := Entry(seed=1, number=2, name="c", seconds=1.0))
    assert journal.entries()[-1] == third
