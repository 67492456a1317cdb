"""``gpu-share audit follow``: each record once, as it comes, of this machine or of all nodes."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enforcer.audit.log import AuditLog, lines_of, segments
from enforcer.audit.record import GENESIS, ChainHead, Kind, append_hash, read
from gpushare.errors import ClusterError, ConfigError
from gpushare.kube_client import KubeClient
from gpushare_cli import terminal
from gpushare_cli.audit import follow
from gpushare_cli.audit.follow import Tail
from tests.support.patience import holds_within
from tests.unit.gpushare_cli.audit_logs import Nodes, run, write


def test_following_shows_each_record_once_over_rotations(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit", segment_bytes=900) as log:
        tail, seen = Tail(tmp_path / "audit"), list[bytes]()
        for round_ in range(5):
            for _ in range(round_):
                log.append(Kind.WARNED, {"note": "x" * 200})
            seen += tail.read()
        assert list(tail.read()) == []
    assert seen == [line for file in segments(tmp_path / "audit") for line in lines_of(file)]
    assert len(seen) == 10
    assert len(segments(tmp_path / "audit")) > 2


def test_following_takes_more_at_once_than_it_reads_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare_cli.audit.follow.AT_ONCE", 4096)
    (tmp_path / "audit").mkdir()
    lines, head = [], GENESIS
    for _ in range(100):
        line, head = append_hash(head, Kind.WARNED, "t", {"note": "x" * 300})
        lines.append(line)
    (tmp_path / "audit" / "kills-000000000001.jsonl").write_bytes(b"".join(lines))
    assert list(Tail(tmp_path / "audit").read()) == lines


def test_a_line_that_is_being_written_waits_and_a_torn_one_is_forgotten(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (file,) = segments(tmp_path / "audit")
    tail, whole = Tail(tmp_path / "audit"), file.read_bytes()
    list(tail.read())
    line, _ = append_hash(GENESIS, Kind.WARNED, "t", {})
    file.write_bytes(whole + line[:20])
    assert list(tail.read()) == []
    file.write_bytes(whole + line)
    assert list(tail.read()) == [line]
    file.write_bytes(whole)
    assert list(tail.read()) == []
    file.write_bytes(whole + line)
    assert list(tail.read()) == [line]


def test_following_gets_by_what_is_no_log(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (file,) = segments(tmp_path / "audit")
    tail = Tail(tmp_path / "audit")
    list(tail.read())
    file.write_bytes(file.read_bytes() + b"x" * 50_000)
    assert sum(map(len, tail.read())) >= 50_000
    assert list(tail.read()) == []
    (tmp_path / "audit" / "kills-000000000002.jsonl").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="not a regular file"):
        list(tail.read())


def test_follow_shows_what_is_there_and_what_comes_until_interrupted(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 2)
    more, sleep = iter([True, False]), time.sleep

    def slept(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            return sleep(seconds)  # what an earlier test has left running
        assert seconds == follow.FOLLOW_SECONDS
        if not next(more):
            raise KeyboardInterrupt
        with AuditLog(tmp_path / "audit") as log:
            log.append(Kind.OUTCOME, {"pod": {"namespace": "asr", "name": "late"}})
        return None

    monkeypatch.setattr(time, "sleep", slept)
    code, out, _ = run(capsys, "follow", "--state", tmp_path, "-n", "asr", "-o", "json")
    assert (code, [read(line.encode() + b"\n")["seq"] for line in out.splitlines()]) == (130, [2, 3])


def test_follow_without_a_log_is_wrong_use(tmp_path: Path, capsys: Any) -> None:
    code, _, err = run(capsys, "follow", "--state", tmp_path)
    assert (code, "no audit log to follow in" in err) == (2, True)


@pytest.mark.parametrize("name", ["kills-000000000001.jsonl", "copy", "z.jsonl"])
def test_a_segment_alone_is_followed_and_a_folder_of_none_is_wrong_use(name: str, tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, 2)
    (alone,) = segments(tmp_path / "audit")
    copy = shutil.copy(alone, tmp_path / name)
    code, out, _ = run(capsys, "follow", "--log", copy, "--for", "0", "-o", "json")
    assert (code, [read(line.encode() + b"\n")["seq"] for line in out.splitlines()]) == (0, [1, 2])
    (tmp_path / "empty").mkdir()
    code, out, err = run(capsys, "follow", "--log", tmp_path / "empty", "--for", "0")
    assert (code, out, "contains no file kills-*.jsonl" in err) == (2, "", True)


def test_the_log_of_a_folder_that_was_moved_away_is_followed_from_its_first_record(tmp_path: Path) -> None:
    write(tmp_path, 20)
    tail = Tail(tmp_path / "audit")
    assert len(list(tail.read())) == 20
    assert len(segments(tmp_path / "audit")) > 1
    shutil.rmtree(tmp_path / "audit")
    write(tmp_path, 2)
    assert [read(line)["seq"] for line in tail.read()] == [1, 2]
    assert list(tail.read()) == []


def test_records_that_went_before_they_were_shown_are_reported_to_be_missing(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, 12)
    first, second, third, _ = segments(tmp_path / "audit")
    first.unlink()
    assert run(capsys, "follow", "--state", tmp_path, "--for", "0")[::2] == (0, ""), "what went before we came"
    third.unlink()
    said = (
        "gpu-share: records 7 to 9 are missing: the enforcer removed the oldest records, or somebody deleted them; "
        "run 'gpu-share audit verify'\n"
    )
    assert run(capsys, "follow", "--state", tmp_path, "--for", "0")[::2] == (1, said)
    second.unlink()
    assert run(capsys, "follow", "--state", tmp_path, "--for", "0")[::2] == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-A", "--log", "x"], "give only one of the two"), (["--for", "-1"], "whole number"),
        (["--for", "1e3"], "whole number"), (["--for", "\u0663"], "whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_wrong_use(words: list[str], said: str, tmp_path: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "follow", "--state", tmp_path, *words)
    assert (code, out, said in err) == (2, "", True)


# All nodes


def nothing() -> None:
    """Only wait for it."""


def interrupted() -> None:
    """As Ctrl-C does."""
    raise KeyboardInterrupt


class Watched(Nodes):
    """A cluster, and a reader of what is shown who acts on it, and at last presses Ctrl-C."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.folder, self.said = folder, list[str]()
        self.steps: list[tuple[str, Callable[[], object]]] = []
        """What the reader waits for, in turn, and what happens then."""
        self.ends: Callable[[], None] = interrupted
        monkeypatch.setattr(KubeClient, "connect", lambda *_: self)
        monkeypatch.setattr(follow, "FOLLOW_SECONDS", 0.01)
        monkeypatch.setattr(follow, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(follow, "REFRESH_SECONDS", 0.01)
        show, warn = follow.Printer.show, terminal.warn
        monkeypatch.setattr(follow.Printer, "show", lambda *words: self._heard(show, *words))
        monkeypatch.setattr(follow, "warn", lambda text: self._heard(warn, text))

    def node(self, name: str, count: int = 2) -> ChainHead:
        self.add(name, self.folder / name)
        return write(self.folder / name, count, node=name)

    def more(self, name: str) -> None:
        with AuditLog(self.folder / name / "audit") as log:
            log.append(Kind.WARNED, {"node": name, "pod": {"namespace": "asr", "name": "late"}})

    def _heard(self, tell: Callable[..., None], *words: Any) -> None:
        tell(*words)
        self.said.append(str(words[0]) if len(words) == 1 else f"{words[3]} {words[2]['seq']}")
        while self.steps and any(self.steps[0][0] in each for each in self.said):
            self.steps.pop(0)[1]()
            if not self.steps:
                self.ends()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


def test_records_of_all_nodes_come_each_once_until_interrupted(nodes: Watched, capsys: Any) -> None:
    for name in ("gpu-1", "gpu-2"):
        nodes.node(name)
    nodes.steps = [
        ("gpu-1 2", nothing), ("gpu-2 2", lambda: nodes.more("gpu-1")), ("gpu-1 3", lambda: nodes.more("gpu-2")),
        ("gpu-2 3", lambda: nodes.more("gpu-1")), ("gpu-1 4", nothing),
    ]  # fmt: skip
    code, out, err = run(capsys, "follow", "-A")
    assert (code, err) == (130, "")
    header, *rows = [line.split() for line in out.splitlines()]
    assert header[:4] == ["NODE", "SEQ", "TIME", "KIND"]
    assert sorted((row[0], row[1]) for row in rows) == [
        *(("gpu-1", str(seq)) for seq in range(1, 5)), *(("gpu-2", str(seq)) for seq in range(1, 4)),
    ]  # fmt: skip
    assert [row[1] for row in rows if row[0] == "gpu-1"] == ["1", "2", "3", "4"]


def test_what_stands_in_the_logs_is_shown_as_it_stands_and_only_what_is_asked_for(nodes: Watched, capsys: Any) -> None:
    nodes.node("gpu-1")
    nodes.steps = [("gpu-1 2", lambda: nodes.more("gpu-1")), ("gpu-1 3", nothing)]
    code, out, _ = run(capsys, "follow", "-A", "-n", "asr", "-o", "json")
    stored = [line for file in segments(nodes.folder / "gpu-1" / "audit") for line in lines_of(file)]
    assert (code, out.encode()) == (130, b"".join(stored[1:]))


def test_records_of_a_node_that_went_before_they_were_shown_are_reported_to_be_missing(
    nodes: Watched, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.node("gpu-1")

    def more_than_stays() -> None:
        later = shutil.copytree(nodes.folder / "gpu-1", nodes.folder / "later")
        with AuditLog(later / "audit", segment_bytes=1) as log:
            for _ in range(3):
                log.append(Kind.WARNED, {"node": "gpu-1"})
        segments(later / "audit")[1].unlink()
        nodes.states["enforcer-gpu-1"] = later

    passed = [0.0]
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0]))
    nodes.steps = [("gpu-1 2", more_than_stays), ("gpu-1 5", lambda: passed.append(passed.pop() + 1000.0))]
    nodes.ends = nothing
    code, _, err = run(capsys, "follow", "-A", "--for", "900")
    said = "record 3 is missing in the enforcer pod's log; read the node's audit log with 'gpu-share audit show -A'"
    assert (code, err) == (1, f"gpu-share: node gpu-1: {said}\n")


def test_a_node_that_cannot_be_reached_is_reported_once_and_when_it_is_back(
    nodes: Watched, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpu-1", "gpu-2"):
        nodes.node(name)
    nodes.broken["enforcer-gpu-2"] = ClusterError("the kubelet is away", 502)

    def come_back() -> None:
        assert holds_within(lambda: nodes.followed.count("enforcer-gpu-2") > 6, 60, pause=0.01)
        del nodes.broken["enforcer-gpu-2"]

    nodes.steps = [
        ("gpu-2: cannot follow the log", nothing), ("gpu-1 2", come_back),
        ("gpu-2: the log of the enforcer pod is readable again", lambda: nodes.more("gpu-2")), ("gpu-2 3", nothing),
    ]  # fmt: skip
    code, _, err = run(capsys, "follow", "-A")
    assert code == 130
    assert err == (
        "gpu-share: node gpu-2: cannot follow the log of the enforcer pod: the kubelet is away; retrying\n"
        "gpu-share: node gpu-2: the log of the enforcer pod is readable again\n"
    )
    assert [each for each in nodes.said if each.startswith("gpu-2 ")] == ["gpu-2 1", "gpu-2 2", "gpu-2 3"]


def test_a_node_that_comes_later_and_an_enforcer_that_is_replaced_are_followed_too(
    nodes: Watched, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.node("gpu-1")

    def replace() -> None:
        pod = nodes.pods[0]
        nodes.broken["enforcer-gpu-1"] = ClusterError("no such pod", 404)
        nodes.states["enforcer-new"] = nodes.folder / "gpu-1"
        nodes.pods[0] = {**pod, "metadata": {**pod["metadata"], "name": "enforcer-new"}}
        nodes.more("gpu-1")

    nodes.steps = [("gpu-1 2", lambda: nodes.node("gpu-2")), ("gpu-2 2", replace), ("gpu-1 3", nothing)]
    assert run(capsys, "follow", "-A")[0] == 130
    assert [each for each in nodes.said if each.startswith("gpu-1 ")] == ["gpu-1 1", "gpu-1 2", "gpu-1 3"]


def test_an_api_server_that_goes_away_later_ends_nothing(
    nodes: Watched, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.node("gpu-1")
    list_ = nodes.list
    away = threading.Event()

    def listed(where: str, **query: str) -> Any:
        if away.is_set():
            raise ClusterError("the API server does not answer")
        return list_(where, **query)

    monkeypatch.setattr(nodes, "list", listed)

    def go() -> None:
        nodes.broken["enforcer-gpu-1"] = ClusterError("the API server does not answer")
        away.set()

    def come_back() -> None:
        nodes.broken.clear()
        away.clear()
        nodes.more("gpu-1")

    nodes.steps = [
        ("gpu-1 2", go),
        ("cannot follow the log of the enforcer pod: the API server", come_back),
        ("gpu-1 3", nothing),
    ]
    assert run(capsys, "follow", "-A")[0] == 130
    away.set()
    assert run(capsys, "follow", "-A") == (1, "", "gpu-share: the API server does not answer\n")


def test_a_log_that_was_begun_again_is_followed_from_its_first_record(nodes: Watched, capsys: Any) -> None:
    nodes.node("gpu-1")

    def begin_anew() -> None:
        nodes.said.clear()
        (nodes.folder / "new").mkdir()
        nodes.more("new")
        nodes.states["enforcer-gpu-1"] = nodes.folder / "new"

    nodes.steps = [("gpu-1 2", begin_anew), ("gpu-1 1", nothing)]
    code, out, _ = run(capsys, "follow", "-A", "-o", "json")
    assert (code, [read(line.encode() + b"\n")["seq"] for line in out.splitlines()]) == (130, [1, 2, 1])


def test_what_an_enforcer_prints_beside_its_records_is_not_shown(nodes: Watched, capsys: Any) -> None:
    nodes.node("gpu-1")
    (file,) = segments(nodes.folder / "gpu-1" / "audit")
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + b"\x1b[31mrubbish\n" + b'{"seq":9,"kind":"made up"}\n' + second)
    nodes.steps = [("gpu-1 2", nothing)]
    code, out, err = run(capsys, "follow", "-A", "-o", "json")
    assert (code, out.encode(), err) == (130, first + second, "")


def test_enforcers_that_print_no_records_cannot_be_followed(nodes: Watched, capsys: Any) -> None:
    nodes.node("gpu-1")
    nodes.pods[0]["spec"]["containers"][0]["args"].append("--audit-to=none")
    code, out, err = run(capsys, "follow", "-A")
    assert (code, out, "use 'gpu-share audit show -A'" in err) == (1, "", True)
