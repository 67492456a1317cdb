"""Every test file that needs a cluster runs once, whoever forgot to say how long it takes."""

from collections import Counter
from pathlib import Path

import pytest

from tests.testbed.cluster.versions import NEWEST, VERSIONS
from tests.testbed.parallel import workers

ROOT = Path(__file__).parents[3]
FILES = workers.marked(ROOT)
ON_NODES = [file for file, node in FILES.items() if node]
ON_PLANES = [file for file, node in FILES.items() if not node]


def sessions(dealt: list[workers.Worker]) -> list[workers.Session]:
    return [session for worker in dealt for session in worker]


def run(dealt: list[workers.Worker]) -> list[str]:
    return [file for session in sessions(dealt) for file in session.files]


@pytest.mark.parametrize("nodes", [1, 2, 3, 30])
def test_every_file_that_needs_a_node_is_in_exactly_one_worker(nodes: int) -> None:
    assert len(ON_NODES) > 10
    assert Counter(run(workers.on_nodes(ON_NODES, nodes))) == Counter(ON_NODES)


@pytest.mark.parametrize("full", [True, False])
def test_every_other_file_runs_once_on_the_newest_version_and_in_full_on_each(*, full: bool) -> None:
    assert len(ON_PLANES) > 10
    for version in VERSIONS:
        its = [s for s in sessions(workers.on_planes(ON_PLANES, [*VERSIONS], full=full)) if s.kubernetes == version]
        found = Counter(file for each in its for file in each.files)
        if full or version == NEWEST:
            assert found == Counter(ON_PLANES)
        else:
            assert found == Counter(file for file in ON_PLANES if file.startswith(workers.BY_VERSION))


def test_what_runs_on_older_versions_exists() -> None:
    assert [name for name in workers.BY_VERSION if not any(file.startswith(name) for file in ON_PLANES)] == []


def test_a_file_that_the_table_does_not_know_runs_too() -> None:
    stranger = "tests/e2e/test_of_tomorrow.py"
    assert stranger not in workers.SECONDS
    assert run(workers.on_nodes([*ON_NODES, stranger], 3)).count(stranger) == 1


def test_marked_files_are_found_however_they_are_marked(tmp_path: Path) -> None:
    texts = {
        "test_module.py": "pytestmark = pytest.mark.controlplane\n",
        "test_list.py": "pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e]\n",
        "deep/test_one.py": "@pytest.mark.controlplane\ndef test_it(): ...\n",
        "test_split.py": "pytestmark = [\n    pytest.mark.timeout(9),\n    pytest.mark.node_e2e,\n]\n",
        "test_says.py": "TEXT = 'pytest.mark.controlplane'\n",
        "test_other.py": "pytestmark = pytest.mark.node\n",
        "helper.py": "pytestmark = pytest.mark.controlplane\n",
    }
    for name, text in texts.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    assert workers.marked(tmp_path) == {
        "tests/deep/test_one.py": False,
        "tests/test_list.py": True,
        "tests/test_module.py": False,
        "tests/test_split.py": True,
    }


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_what_ends_the_product_is_the_last_of_its_cluster(nodes: int) -> None:
    (its,) = [each for each in sessions(workers.on_nodes(ON_NODES, nodes)) if workers.LAST[-1] in each.files]
    assert its.files[-1] == workers.LAST[-1]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_what_starts_nodes_of_its_own_comes_before_the_node_that_its_session_shares(nodes: int) -> None:
    (its,) = [each for each in sessions(workers.on_nodes(ON_NODES, nodes)) if workers.OWN[0] in each.files]
    assert its.files[0] == workers.OWN[0]


def test_what_starts_control_planes_of_its_own_is_a_session_of_its_own() -> None:
    assert workers.APART in [each.files for each in sessions(workers.on_planes(ON_PLANES, [NEWEST], full=False))]


def test_workers_get_about_the_same_work() -> None:
    work = [workers.work(worker) for worker in workers.on_nodes(ON_NODES, 4)]
    longest = max(map(workers.seconds, ON_NODES))
    assert len(work) == 4
    assert max(work) - min(work) <= workers.UNKNOWN or max(work) == longest, "a file cannot be dealt in halves"
    assert max(each for each in work if each != longest) - min(work) <= workers.UNKNOWN


def test_no_worker_is_empty_and_no_two_sessions_share_a_log() -> None:
    for dealt in (workers.on_nodes(ON_NODES, 30), workers.on_planes(ON_PLANES, [*VERSIONS], full=True)):
        names = [session.name for session in sessions(dealt)]
        assert len(set(names)) == len(names)
        assert all(session.files for session in sessions(dealt))
    assert workers.on_nodes([], 3) == workers.on_planes([], [NEWEST], full=True) == []
    assert [each.files for each in sessions(workers.on_planes(["a.py"], [NEWEST], full=True))] == [("a.py",)]


def test_virtual_nodes_have_two_workers_with_their_own_files() -> None:
    dealt = workers.on_vm(ON_NODES)
    own = {file for file in ON_NODES if file.startswith(workers.VM_FOLDER)}
    assert own
    files = [file for session in sessions(dealt) for file in session.files]
    assert sorted(files) == sorted(own)
    assert [session.virtual for session in sessions(dealt)] == [True, True]
    assert not any(session.virtual for session in sessions(workers.on_nodes(ON_NODES, 3)))
    assert workers.on_vm([]) == []


@pytest.mark.parametrize(
    ("asked", "virtual"),
    [
        (["vm"], True),
        (["tests/e2e/vm/test_reboot.py"], True),
        (["tests/e2e/vm/test_reboot.py", "tests/e2e/test_kill.py"], False),
        ([], False),
    ],
)
def test_its_own_files_alone_ask_for_a_virtual_node_too(asked: list[str], *, virtual: bool) -> None:
    assert workers.for_vm(asked) is virtual
