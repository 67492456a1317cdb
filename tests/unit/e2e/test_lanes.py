"""Every test file that needs a cluster runs once, whoever forgot to say how long it takes."""

from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.versions import NEWEST, OLDEST
from tests.e2e import lanes

ROOT = Path(__file__).parents[3]
FILES = lanes.marked(ROOT)
FILE = "tests/controlplane/test_scale.py"


def dealt(files: dict[str, bool], nodes: int) -> list[str]:
    return [file for lane in lanes.deal(files, nodes) for session in lane for file in session.files]


@pytest.mark.parametrize("nodes", [1, 2, 3, 30])
def test_every_file_is_in_exactly_one_lane(nodes: int) -> None:
    assert len(FILES) > 20
    assert Counter(dealt(FILES, nodes)) == Counter(list(FILES))


def test_a_file_that_the_table_does_not_know_runs_too() -> None:
    strangers = {"tests/realnode/test_of_tomorrow.py": True, "tests/controlplane/test_of_tomorrow.py": False}
    assert not strangers.keys() & lanes.SECONDS.keys()
    run = dealt({**FILES, **strangers}, 3)
    assert [run.count(each) for each in strangers] == [1, 1]


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
    assert lanes.marked(tmp_path) == {
        "tests/deep/test_one.py": False,
        "tests/test_list.py": True,
        "tests/test_module.py": False,
        "tests/test_split.py": True,
    }


def test_what_ends_the_product_is_the_last_of_its_cluster() -> None:
    for nodes in (1, 2, 3):
        sessions = [session for lane in lanes.deal(FILES, nodes) for session in lane]
        (its,) = [session for session in sessions if lanes.LAST[-1] in session.files]
        assert its.files[-1] == lanes.LAST[-1]


def test_the_first_lane_has_the_control_plane() -> None:
    plain, *_ = lanes.deal(FILES, 3)[0]
    assert set(plain.files) == {file for file in FILES if not FILES[file]} - set(lanes.APART)


def test_the_first_lane_has_no_node_beside_it_while_others_have_one() -> None:
    many = 3 * lanes.CONTROL_PLANE // lanes.UNKNOWN
    files = {"tests/test_plain.py": False, **{f"tests/realnode/test_{number}.py": True for number in range(many)}}
    first, second = lanes.deal(files, 1)
    assert ([each.name for each in first], [each.name for each in second]) == (["control-plane"], ["node-1"])
    assert [each.name for each in lanes.deal(files, 0)[0]] == ["control-plane", "node-0"], "who has nobody else"


def test_what_starts_control_planes_of_its_own_is_a_session_of_its_own() -> None:
    for nodes in (1, 2, 3):
        sessions = [session for lane in lanes.deal(FILES, nodes) for session in lane]
        assert [session.files for session in sessions if session.name == "planes"] == [lanes.APART]


def test_what_starts_nodes_of_its_own_comes_before_the_node_that_its_session_shares() -> None:
    for nodes in (1, 2, 3):
        sessions = [session for lane in lanes.deal(FILES, nodes) for session in lane]
        (its,) = [session for session in sessions if lanes.OWN[0] in session.files]
        assert its.files[0] == lanes.OWN[0]


def test_lanes_get_about_the_same_work() -> None:
    dealt = lanes.deal(FILES, 4)
    work = [lanes.work(lane) for lane in dealt]
    longest = lanes.START + max(map(lanes.seconds, FILES))
    assert len(work) == 5
    assert max(work) - min(work) <= lanes.UNKNOWN or max(work) == longest, "a file cannot be dealt in halves"
    assert max(each for each in work if each != longest) - min(work) <= lanes.UNKNOWN


def test_an_older_version_runs_all_that_needs_no_node() -> None:
    sessions = [session for lane in lanes.deal(lanes.fitting(FILES, OLDEST), 3, OLDEST) for session in lane]
    assert {session.kubernetes for session in sessions} == {OLDEST}
    assert {file for session in sessions for file in session.files} == {file for file in FILES if not FILES[file]}
    assert lanes.fitting(FILES, NEWEST) == FILES


def test_no_lane_is_empty_and_no_two_sessions_share_a_log() -> None:
    names = [session.name for lane in lanes.deal(FILES, 30) for session in lane]
    assert len(set(names)) == len(names)
    assert all(session.files for lane in lanes.deal({"tests/x/test_a.py": True}, 30) for session in lane)
    assert lanes.deal({}, 3) == []
