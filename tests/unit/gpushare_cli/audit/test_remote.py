"""The audit log seen from outside: anchors off the node, and the logs of all nodes from a workstation."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, repeat
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from enforcer.audit.log import AuditLog, lines_of, segments
from enforcer.audit.record import GENESIS, ChainHead, Kind, append_hash, read
from enforcer.audit.retention import Retention
from gpushare.kube_client import KubeClient
from gpushare_cli import enforcer_pods
from gpushare_cli.audit import remote
from gpushare_cli.words import counted
from tests.unit.gpushare_cli.audit_logs import Nodes, run, write


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes()
    monkeypatch.setattr(KubeClient, "connect", lambda *_: nodes)
    monkeypatch.delenv("NODE_NAME", raising=False)
    return nodes


def cut(state: Path, keep: int = 1) -> None:
    """Cut a log behind our back; what is left still holds."""
    for file in segments(state / "audit")[keep:]:
        file.unlink()


def rechained(state: Path) -> ChainHead:
    """Replace a log whole, by one as long that holds as well."""
    cut(state, 0)
    return write(state, more="nothing happened")


@pytest.mark.parametrize("where", ["given", "file", "file with nodes", "annotation"])
def test_a_log_cut_or_replaced_behind_our_back_holds_alone_and_fails_with_its_anchor(
    where: str, nodes: Nodes, tmp_path: Path, capsys: Any
) -> None:
    state, file = tmp_path / "state", tmp_path / "anchors"
    head = write(state)
    nodes.annotate("gpu-8", "1:sha256:" + "0" * 64)
    if where == "annotation":
        nodes.annotate("gpu-7", head)
    file.write_text(f"# kept\n\n{'gpu-7 ' if 'nodes' in where else ''}{head} ResourceSlice gpu-7\n")
    anchor = {"given": head, "annotation": "cluster"}.get(where, file)
    assert run(capsys, "verify", "--state", state, "--anchor", anchor)[:2] == (
        0, ("" if where in {"file", "given"} else "gpu-7: ")
        + f"ok: 6 records in {counted(len(segments(state / 'audit')), 'segment')} are intact; 1 anchor matches\n"
        + f"head {head}\n",
    )  # fmt: skip
    for change, said in ((cut, "the log was truncated"), (rechained, "the log was replaced")):
        change(state)
        assert run(capsys, "verify", "--state", state)[0] == 0, "alone it holds"
        code, out, _ = run(capsys, "verify", "--state", state, "--anchor", anchor)
        assert (code, "broken" in out, said in out) == (1, True, True), out


def test_one_anchor_that_fits_does_not_hide_one_that_does_not(nodes: Nodes, tmp_path: Path, capsys: Any) -> None:
    head = write(tmp_path)
    nodes.annotate("gpu-7", head)
    code, out, _ = run(capsys, "verify", "--state", tmp_path, "--anchor", "cluster", "--anchor", "3:sha256:" + "0" * 64)
    assert (code, "record 3 has another hash than the anchor: the log was replaced (--anchor)" in out) == (1, True)


def test_an_event_that_a_tenant_wrote_breaks_no_log_and_vouches_for_none(
    nodes: Nodes, tmp_path: Path, capsys: Any
) -> None:
    head = write(tmp_path)
    nodes.event("gpu-7", head)
    verify = ("verify", "--state", tmp_path, "--anchor", "cluster")
    code, out, _ = run(capsys, *verify)
    assert (code, "no anchor to compare the log with" in out, "warning" in out) == (1, True, False), "it fits: no proof"
    nodes.annotate("gpu-7", head)
    holds = (
        f"gpu-7: ok: 6 records in {counted(len(segments(tmp_path / 'audit')), 'segment')} are intact; 1 anchor matches"
    )
    assert run(capsys, *verify)[:2] == (0, f"{holds}\nhead {head}\n")
    for number in range(7):
        nodes.event("gpu-7", f"{3 + 10 * number}:sha256:" + "0" * 64)
    code, out, _ = run(capsys, *verify)
    assert (code, out.splitlines()[0]) == (0, holds)
    said = out.splitlines()[2]
    assert said.startswith("gpu-7: warning: Event asr/tts-0-1, Event asr/tts-0-2, ")
    assert "Event asr/tts-0-5 and 2 more refer to records that are not in this log; this does not prove" in said


def test_an_event_about_a_node_that_is_not_there_is_no_silent_node(nodes: Nodes, tmp_path: Path, capsys: Any) -> None:
    nodes.annotate("gpu-1", write(tmp_path, node="gpu-1"))
    nodes.add("gpu-1", tmp_path)
    nodes.event("made-up", "9:sha256:" + "0" * 64)
    assert run(capsys, "verify", "-A")[::2] == (0, "")


def test_an_anchor_of_another_node_is_not_compared_and_reported_to_be_missing(
    nodes: Nodes, tmp_path: Path, capsys: Any
) -> None:
    write(tmp_path)
    nodes.annotate("gpu-8", "99:sha256:" + "0" * 64)
    code, out, _ = run(capsys, "verify", "--state", tmp_path, "--anchor", "cluster")
    assert (code, out.splitlines()[2]) == (
        1, "no anchor to compare the log with: the cluster or file has no anchor for this log (node: gpu-7)"
    )  # fmt: skip
    assert run(capsys, "verify", "--state", tmp_path, "--anchor", "cluster", "--node", "gpu-8")[0] == 1
    nodes.slices.clear()
    empty = tmp_path / "empty"
    (empty / "audit").mkdir(parents=True)
    assert run(capsys, "verify", "--state", empty, "--anchor", "cluster")[0] == 0, "nothing written, nothing seen"


def test_events_of_others_are_no_anchors_and_events_that_may_not_be_read_are_notified(
    nodes: Nodes, tmp_path: Path, capsys: Any
) -> None:
    head = write(tmp_path)
    nodes.annotate("gpu-7", head)
    nodes.event("gpu-7", "99:sha256:" + "0" * 64, reporter="kubelet")
    assert run(capsys, "verify", "--state", tmp_path, "--anchor", "cluster")[0] == 0
    nodes.refuse_events = True
    code, _, err = run(capsys, "verify", "--state", tmp_path, "--anchor", "cluster")
    assert (code, "cannot read Events" in err) == (0, True)


def test_what_the_cluster_saw_can_be_kept_and_held_against_logs_later(
    nodes: Nodes, tmp_path: Path, capsys: Any
) -> None:
    state, kept = tmp_path / "state", tmp_path / "kept"
    head = write(state)
    nodes.annotate("gpu-7", head)
    nodes.event("gpu-7", "9:sha256:" + "0" * 64)
    code, out, _ = run(capsys, "anchors")
    assert (code, out.splitlines()) == (
        0,
        [
            f"gpu-7 {head} ResourceSlice gpu-7-gpu-share.io-0",
            (
                f"# gpu-7 9:sha256:{'0' * 64} Event asr/tts-0-0: not an anchor, because every user who may create "
                "Events can forge it"
            ),
        ],
    )
    kept.write_text(out)
    nodes.slices.clear()
    assert run(capsys, "verify", "--state", state, "--anchor", kept)[0] == 0
    cut(state)
    assert run(capsys, "verify", "--state", state, "--anchor", kept)[0] == 1


@pytest.mark.parametrize("text", ["x", "1:2", "", "\0", "/", "9" * 5000, "7:sha256:abc"])
def test_an_anchor_that_is_none_is_wrong_use(text: str, tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    code, _, err = run(capsys, "verify", "--state", tmp_path, "--anchor", text)
    assert (code, "write SEQ:HASH, the name of a file with anchors, or the word cluster" in err) == (2, True)


def test_the_head_of_an_empty_log_fits_it_and_says_nothing_of_a_later_one(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "audit").mkdir(mode=0o700)
    verify = ("verify", "--state", tmp_path, "--anchor", GENESIS)
    assert str(GENESIS) in run(capsys, "verify", "--state", tmp_path)[1]
    assert run(capsys, *verify)[0] == 0
    assert run(capsys, *verify[:-1], "0:sha256:" + "1" * 64)[0] == 1
    write(tmp_path)
    code, out, _ = run(capsys, *verify)
    assert (code, "give a later anchor" in out) == (1, True)


@pytest.mark.parametrize("before", ["\ufeff", "# kept\r\n", ""])
def test_a_file_of_anchors_may_come_from_another_system(before: str, tmp_path: Path, capsys: Any) -> None:
    head, file = write(tmp_path), tmp_path / "anchors"
    file.write_text(f"{before}gpu-7 {head}\r\n", encoding="utf-8")
    assert run(capsys, "verify", "--state", tmp_path, "--anchor", file)[0] == 0


def test_a_bad_line_among_anchors_is_named(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    file = tmp_path / "anchors"
    for line in ("gpu-7", "gpu-7 7", "x:y"):
        file.write_text(f"\n{line}\n")
        code, _, err = run(capsys, "verify", "--state", tmp_path, "--anchor", file)
        assert (code, f"{file}:2: " in err) == (2, True)


def test_an_anchor_older_than_a_pruned_log_is_counted_and_not_held_against_it(tmp_path: Path, capsys: Any) -> None:
    with AuditLog(tmp_path / "audit", segment_bytes=600, retention=Retention(segments=1)) as log:
        heads = [log.append(Kind.WARNED, {"node": "gpu-7", "note": "x" * 200}) for _ in range(12)]
    verify = ("verify", "--state", tmp_path, "--anchor", heads[0])
    assert read(next(lines_of(segments(tmp_path / "audit")[0])))["seq"] > 1
    code, out, _ = run(capsys, *verify)
    assert (code, "1 anchor is older than the log" in out, "give a later anchor" in out) == (
        1,
        True,
        True,
    )
    code, out, _ = run(capsys, *verify, "--anchor", heads[-1])
    assert (code, "are intact; 1 anchor matches; 1 anchor is older than the log" in out) == (0, True)


def test_all_nodes_are_verified_against_what_the_cluster_saw(nodes: Nodes, tmp_path: Path, capsys: Any) -> None:
    for node in ("gpu-1", "gpu-2"):
        nodes.annotate(node, write(tmp_path / node, node=node))
        nodes.add(node, tmp_path / node)
    code, out, err = run(capsys, "verify", "-A")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if "ok" in line] == [
        f"{node}: ok: 6 records in 1 segment are intact; 1 anchor matches" for node in ("gpu-1", "gpu-2")
    ]
    cut(tmp_path / "gpu-2")
    code, out, _ = run(capsys, "verify", "-A")
    assert (code, "gpu-1: ok" in out, "gpu-2: broken: audit log: after its last line: " in out) == (1, True, True)


@pytest.mark.parametrize("anchored", ["with anchors", ""])
def test_a_log_of_another_node_is_seen_also_where_there_is_no_anchor(
    anchored: str, nodes: Nodes, tmp_path: Path, capsys: Any
) -> None:
    for node in ("gpu-1", "gpu-2"):
        head = write(tmp_path / node, node=node)
        nodes.add(node, tmp_path / node)
        if anchored:
            nodes.annotate(node, head)
    assert "warning" not in run(capsys, "verify", "-A")[1]
    one, other = nodes.states
    nodes.states[one], nodes.states[other] = nodes.states[other], nodes.states[one]
    code, out, _ = run(capsys, "verify", "-A")
    said = "gpu-1: broken: .*" if anchored else "gpu-1: warning: .* node gpu-2: .* renamed"
    assert (code, re.search(f"^{said}$", out, re.MULTILINE) is not None) == (1, True), out


def test_a_node_that_cannot_be_read_is_named_and_the_others_are_read(nodes: Nodes, tmp_path: Path, capsys: Any) -> None:
    nodes.annotate("gpu-1", write(tmp_path / "gpu-1", node="gpu-1"))
    nodes.add("gpu-1", tmp_path / "gpu-1")
    nodes.add("gpu-2", tmp_path / "gpu-2", phase="Pending")
    assert run(capsys, "verify", "-A")[0] == 1, "for gpu-2 alone"
    nodes.pods.pop()
    nodes.annotate("gpu-3", "1:sha256:" + "0" * 64)
    code, out, err = run(capsys, "verify", "-A")
    assert (code, "gpu-1: ok" in out) == (1, True)
    assert err.startswith("gpu-share: node gpu-3: the cluster has anchors of this node's log, but the log could not be")
    nodes.add("gpu-2", tmp_path / "gpu-2", phase="Pending")
    code, out, err = run(capsys, "show", "-A", "-o", "json")
    assert err == "gpu-share: node gpu-2: cannot read the audit log: pod gpu-share-system/enforcer-gpu-2 is Pending\n"
    assert (code, len(json.loads(out)), "node gpu-2" in err) == (1, 6, True)


def test_pods_that_only_bear_the_labels_are_no_enforcers(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add("gpu-1", tmp_path, owner="a tenant's set")
    assert enforcer_pods.find_enforcers(nodes) == []  # type: ignore[arg-type] # a stand-in


def test_which_daemonset_is_ours_is_never_guessed(nodes: Nodes, capsys: Any) -> None:
    nodes.daemonsets.append(Nodes._set("tenant", "other-uid"))
    code, _, err = run(capsys, "show", "-A")
    assert (code, "gpu-share-system, tenant; choose one with --enforcer-namespace NAMESPACE" in err) == (2, True)
    nodes.daemonsets.clear()
    code, _, err = run(capsys, "show", "-A", "--enforcer-namespace", "x")
    assert (code, "no DaemonSet gpu-share-enforcer exists in x" in err) == (1, True)


def test_records_of_all_nodes_are_shown_with_their_nodes(nodes: Nodes, tmp_path: Path, capsys: Any) -> None:
    for node in ("gpu-1", "gpu-2"):
        write(tmp_path / node, node=node)
        nodes.add(node, tmp_path / node)
    code, out, _ = run(capsys, "show", "-A", "--since", "2026-11-20T22:05:00Z")
    assert (code, [line.split()[:4] for line in out.splitlines()]) == (
        0,
        [["NODE", "SEQ", "TIME", "KIND"]]
        + [[node, "6", "2026-11-20T22:05:00.000Z", "OUTCOME"] for node in ("gpu-1", "gpu-2")],
    )
    code, out, _ = run(capsys, "export", "-A")
    stored = [line for node in nodes.states.values() for f in segments(node / "audit") for line in lines_of(f)]
    assert (code, out.encode()) == (0, b"".join(stored))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "-A", "--log", "x"], "give only one of the two"),
        (["verify", "-A", "--node", "gpu-1"], "give only one of the two"),
        (["export", "-A", "--format", "raw"], "remove the filters and -A"),
        (["export", "--format", "raw", "--pod", "x"], "remove the filters and -A"),
    ],
)
def test_what_does_not_go_together_is_wrong_use(words: list[str], said: str, nodes: Nodes, capsys: Any) -> None:
    code, _, err = run(capsys, *words)
    assert (code, said in err) == (2, True)


@pytest.mark.parametrize("size", [1, 7, 4096, 100_000])
def test_pieces_become_the_lines_they_are_made_of(size: int, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        for _ in range(50):
            log.append(Kind.WARNED, {"note": "x" * 300})
    (file,) = segments(tmp_path / "audit")
    file.write_bytes(file.read_bytes() + b"\xff\nrubbish" + b"x" * 10_000)
    data = file.read_bytes()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(remote.lines_of(pieces)) == list(lines_of(file))


def records() -> Iterator[bytes]:
    head = GENESIS
    while True:
        line, head = append_hash(head, Kind.WARNED, "t", {"node": "liar"})
        yield line


ENDLESS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a log that holds": records,
    "a log whose beginning is missing": lambda: islice(records(), 1, None),
    "rubbish": lambda: repeat(b"\x1b[2J\n"),
    "one line": lambda: repeat(b"x" * 100),
}


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize(("seconds", "most"), [(0, 50_000), (20, 2**40)], ids=["fast", "slow"])
def test_a_node_that_never_ends_does_not_keep_the_others_from_us(
    what: str, seconds: int, most: int, nodes: Nodes, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, honest = Counter[int](), nodes.run  # of each thread its own: one asks one node at a time

    def run_(pod: str, *words: Any, **options: Any) -> Iterator[bytes]:
        for piece in ENDLESS[what]() if pod == "enforcer-liar" else honest(pod, *words, **options):
            clocks[get_ident()] += seconds * (pod == "enforcer-liar")
            yield piece

    monkeypatch.setattr(nodes, "run", run_)
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: clocks[get_ident()]))
    monkeypatch.setattr(remote, "MOST", most)
    nodes.annotate("gpu-1", write(tmp_path / "gpu-1", node="gpu-1"))
    for node in ("gpu-1", "liar"):
        nodes.add(node, tmp_path / node)
    assert 0 < remote.LONGEST <= 3600
    code, out, err = run(capsys, "verify", "-A")
    assert (code, "gpu-1: ok: 6 records" in out) == (1, True)
    assert "broken" in out or "node liar: cannot read the audit log: reading through the API server stopped" in err
    code, out, err = run(capsys, "show", "-A", "-o", "json")
    assert (code, len(json.loads(out)), "node liar: cannot read the audit log" in err) == (1, 6, True)


def test_a_hole_in_a_nodes_log_is_notified_with_the_nodes_name(nodes: Nodes, tmp_path: Path, capsys: Any) -> None:
    for node in ("gpu-7", "gpu-8"):
        write(tmp_path / node, 12, node=node)
        nodes.add(node, tmp_path / node)
    segments(tmp_path / "gpu-8" / "audit")[1].unlink()
    code, _, err = run(capsys, "show", "-A")
    assert (code, err.count("missing"), "node gpu-8: record" in err) == (1, 1, True), err
