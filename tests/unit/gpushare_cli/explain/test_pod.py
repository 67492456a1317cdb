"""``gpu-share explain POD`` on objects that ``tests/integration/controlplane/test_explain.py`` recorded."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import ClusterError, GpuShareError
from gpushare_cli.explain import pod as reading
from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.pod import recorded
from gpushare_cli.explain.pod_record import PodRecord
from gpushare_cli.main import main

FIXTURES = Path(__file__).parents[3] / "fixtures/explain"
GPU = "GPU-a1000000-0000-4000-8000-000000000000"


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return found


def told(content: dict[str, Any]) -> tuple[bool, list[str]]:
    found = explain(PodRecord(**content))
    return found.fine, found.lines


def row(lines: list[str], number: int = 2) -> list[str]:
    return [cell.strip() for cell in lines[number].split("  ") if cell.strip()]


class Api:
    """Answers from a recording; names in ``refused`` are forbidden."""

    def __init__(self, content: dict[str, Any], *refused: str, status: int = 403) -> None:
        self.content, self.refused, self.status, self.asked = content, refused, status, list[str]()

    def get(self, where: str) -> Any:
        kind, name = where.rsplit("/", 2)[-2:]
        self._ask(kind)
        if kind == "namespaces" and name != "nowhere":
            return {"metadata": {"name": name}}
        found = self.content["pod"] if kind == "pods" else self.content["claims"].get(name)
        if found is None or found["metadata"]["name"] != name:
            raise ClusterError("not found", 404)
        return found

    def listing(self, where: str, **query: str) -> Iterator[Any]:
        return iter(self.list(where, **query)[0])

    def list(self, where: str, **query: str) -> tuple[Any, str]:
        self._ask(where.rsplit("/", 1)[-1])
        assert query == {"fieldSelector": f"involvedObject.uid={self.content['pod']['metadata']['uid']}"}
        return self.content["events"], "1"

    def _ask(self, kind: str) -> None:
        self.asked.append(kind)
        if kind in self.refused:
            raise ClusterError("no", self.status)


def test_a_running_pod_is_fine_and_shows_asked_given_gpu_and_state() -> None:
    fine, lines = told(load("running"))
    assert fine
    assert lines[0] == "explained-1/running: Running on node explained"
    assert row(lines) == ["main", "4Gi, 25%", "4Gi, 25%", GPU, "running, restarts: 1"]
    assert len(lines) == 3


def test_who_waits_for_several_gpus_is_notified_which_nodes_have_them() -> None:
    content = load("waiting")
    annotations = content["pod"]["metadata"]["annotations"]
    assert not any("time-slices" in line for line in told(content)[1])
    annotations["gpu-share.io/gpus"] = "2"
    fine, lines = told(content)
    assert not fine
    assert any("time-slices its GPUs (node label gpu-share.io/mode: time-slicing)" in line for line in lines)
    assert row(lines)[1].endswith("of 2 GPUs")
    annotations["gpu-share.io/gpus"] = "1"
    assert not any("time-slices" in line or "of 1 GPUs" in line for line in told(content)[1])
    content["pod"]["spec"]["nodeName"] = "there"
    annotations["gpu-share.io/gpus"] = "2"
    assert not any("time-slices" in line for line in told(content)[1])


def test_whether_the_limit_is_in_force_is_shown() -> None:
    content = load("running")
    (claim,) = content["claims"].values()
    condition = {
        "type": "LimitInForce",
        "status": "False",
        "reason": "LimitEscaped",
        "message": "main (mps-v2): it holds",
    }
    claim["status"]["devices"][0]["conditions"] = [{"type": "Ready"}, condition]
    fine, lines = told(content)
    assert (fine, lines[3:]) == (False, ["  limit LimitEscaped: main (mps-v2): it holds"])
    condition.update(reason="NotApplied", message="main (watch-only): no limit")
    assert told(content)[0], "none is meant to be in force"


def test_a_quota_that_is_not_what_was_reserved_is_shown_beside_it() -> None:
    content = load("running")
    (claim,) = content["claims"].values()
    claim["status"]["devices"][0]["data"]["limits"][0]["memoryMiB"] = 3072
    assert row(told(content)[1])[2] == "3Gi, 25% (4Gi reserved)"


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (True, ", and no other pod .* this pod has a quota of 0 MiB .* with a ResourceClaim of its own or"),
        (False, " was prepared for pod first, which has ended; .* wait until it is gone, and create it again"),
    ],
)
def test_a_pod_that_joined_anothers_claim_is_notified_that_it_may_hold_nothing_and_what_to_do(
    says: str, *, there: bool
) -> None:
    content = load("running")
    (claim,) = content["claims"].values()
    entry = claim["status"]["devices"][0]
    condition = {"type": "LimitInForce", "status": "True", "reason": "InForce", "message": "main (mps-v2): of first's"}
    entry["conditions"] = [condition]
    entry["data"] |= {"pod": "first", "podUid": "uid-of-first"}
    claim["status"]["reservedFor"] += [{"resource": "pods", "name": "first", "uid": "uid-of-first"}] if there else []
    fine, lines = told(content)
    assert not fine
    assert row(lines) == ["main", "4Gi, 25%", "0Mi (ClaimInUse)", GPU, "running, restarts: 1"]
    (said,) = lines[3:]
    assert re.match(f"  ClaimInUse: .*ResourceClaim {claim['metadata']['name']}{says}", said), said


def test_the_pod_that_a_claim_was_prepared_for_is_shown_its_own() -> None:
    content = load("running")
    (claim,) = content["claims"].values()
    claim["status"]["devices"][0]["data"] |= {"pod": "running", "podUid": content["pod"]["metadata"]["uid"]}
    fine, lines = told(content)
    assert (fine, row(lines)[2], len(lines)) == (True, "4Gi, 25%", 3)


def test_a_killed_pod_says_when_and_why() -> None:
    fine, lines = told(load("killed"))
    assert not fine
    assert lines[3].startswith("  last kill: 2026-11-20T22:16:07.000000Z Killed: container main holds 9000 MiB")
    assert lines[4] == "  container main used at most 9000 MiB; a quota of 10Gi would have sufficed"
    assert lines[5].startswith("    set gpu-share.io/memory: 10Gi on a new pod")
    assert lines[6].startswith("  2026-11-20T22:16:01.000000Z OverQuota: ")
    assert row(lines)[1:4] == ["4Gi", "4Gi, no cap", GPU.lower()]


def test_a_pod_that_came_back_under_its_quota_is_fine_again() -> None:
    content = load("killed")
    event = copy.deepcopy(next(each for each in content["events"] if each["reason"] == "Killed"))
    event |= {"reason": "BackUnderQuota", "type": "Normal", "action": "Warn", "eventTime": "2026-11-20T23:00:00.0Z"}
    content["events"].append(event)
    fine, lines = told(content)
    assert fine
    assert lines[3].startswith("  last kill: ")
    assert lines[-1].startswith("  2026-11-20T23:00:00.0Z BackUnderQuota")


def test_a_pod_without_room_says_so_and_what_that_means() -> None:
    fine, lines = told(load("waiting"))
    assert not fine
    assert lines[0].endswith(": Pending, on no node yet")
    assert row(lines) == ["main", "12Gi", "nothing yet", "N/A", "not started"]
    assert lines[3] == "  not placed: 1 cannot allocate all claims"
    assert lines[5] == "  not placed: 1 node(s) didn't match Pod's node affinity/selector"
    assert len(lines) == 7, "that the template was not there at first is over"


def test_a_claim_that_cannot_be_made_is_reported() -> None:
    content = load("waiting") | {"claims": {}}
    lines = told(content)[1]
    at = next(number for number, line in enumerate(lines) if "FailedResourceClaimCreation" in line)
    assert "template" in lines[at]
    assert "gpu-share check" in lines[at + 1], "the webhook makes the template, and an operator sees why not"


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        ({}, []),
        ({"reason": "Evicted"}, ["  failed: Evicted"]),
        ({"reason": "Evicted", "message": "no memory"}, ["  failed: Evicted: no memory"]),
    ],
)
def test_a_pod_that_failed_shows_what_kubernetes_says_of_it(why: dict[str, str], shown: list[str]) -> None:
    content = load("running")
    content["pod"]["status"] |= {"phase": "Failed", **why}
    assert told(content)[1][3:] == shown


def test_a_root_image_where_root_is_refused_is_translated() -> None:
    content = load("running")
    waiting = {
        "reason": "CreateContainerConfigError",
        "message": "Error: container has runAsNonRoot and image will run as root",
    }
    content["pod"]["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    fine, lines = told(content)
    assert not fine
    assert row(lines)[-1] == "waiting: CreateContainerConfigError, restarts: 1"
    assert lines[4].endswith("set securityContext.runAsUser to another user")


def test_a_claim_of_ones_own_is_a_share_as_well() -> None:
    content = load("running")
    pod, [claim] = content["pod"], content["claims"].values()
    pod["metadata"] |= {"labels": {}, "annotations": {}}
    pod["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": "own"}]
    pod["status"]["resourceClaimStatuses"] = []
    pod["spec"]["containers"][0] |= {"env": [], "resources": {"claims": [{"name": "mine"}]}}
    content["claims"] = {"own": claim}
    assert row(told(content)[1])[1:3] == ["4Gi, 25%", "4Gi, 25%"]
    pod["status"]["phase"], content["claims"] = "Succeeded", {}
    fine, (line,) = told(content)
    assert fine
    assert line.endswith("no annotation requests one, and the pod's ResourceClaims do not exist (any more): own")
    pod["spec"]["resourceClaims"] = []
    (line,) = told(content)[1]
    assert (
        line == "explained-1/running has no share of a GPU: no annotation and no ResourceClaim of the pod requests one"
    )


def test_a_claim_that_the_scheduler_made_for_an_extended_resource_is_a_share_as_well() -> None:
    content = load("running")
    pod, [claim] = content["pod"], content["claims"].values()
    pod["metadata"] |= {"labels": {}, "annotations": {}}
    pod["spec"]["resourceClaims"] = []
    container = pod["spec"]["containers"][0]
    container |= {"env": [], "resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu-share.io": "1"}}}
    mapping = {"containerName": container["name"], "resourceName": "x", "requestName": container["name"]}
    pod["status"] |= {
        "resourceClaimStatuses": [],
        "extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": [mapping]},
    }
    for request in claim["spec"]["devices"]["requests"]:
        request["exactly"].pop("capacity", None)
    content["claims"] = {"made": claim}
    assert row(told(content)[1])[2] == "4Gi, 25%"


def test_what_the_driver_froze_counts_and_not_what_the_pod_says() -> None:
    content = load("running")
    [claim] = content["claims"].values()
    claim["status"]["devices"][0]["data"]["limits"][0] |= {"memoryMiB": 2048, "computePercent": None}
    content["pod"]["metadata"]["annotations"]["gpu-share.io/memory"] = "64Gi"
    assert row(told(content)[1])[1:3] == ["64Gi, 25%", "2Gi, no cap (4Gi reserved)"]
    claim["status"]["devices"][0]["data"]["limits"][0] |= {"computeCap": 60}
    assert row(told(content)[1])[2] == "2Gi, cap 60% (4Gi reserved)"
    claim["status"]["devices"] = []
    assert row(told(content)[1])[2:4] == ["4Gi, 25%", GPU.lower()]


def test_two_requests_on_one_gpu_are_distinguished() -> None:
    content = load("running")
    [claim] = content["claims"].values()
    results, devices = claim["status"]["allocation"]["devices"]["results"], claim["status"]["devices"]
    results.append({**results[0], "request": "second", "shareID": "another"})
    limits = [{"container": "second", "memoryMiB": 1024}]
    devices.append({**devices[0], "shareID": "another", "data": {"uuid": GPU, "limits": limits}})
    uses = {"claims": [{"name": "gpu-share", "request": "second"}]}
    content["pod"]["spec"]["containers"].append({"name": "second", "resources": uses})
    lines = told(content)[1]
    assert [row(lines, number)[2] for number in (2, 3)] == ["4Gi, 25%", "1Gi, no cap"]


def test_a_container_without_a_share_has_none() -> None:
    content = load("running")
    content["pod"]["spec"]["containers"].append({"name": "helper", "image": "x"})
    assert row(told(content)[1], 3) == ["helper", "N/A", "no GPU", "N/A", "not started"]


def test_events_of_another_pod_are_nobodys_business_here() -> None:
    content = load("killed")
    for event in content["events"]:
        event["involvedObject"]["uid"] = "another-of-this-name"
    fine, lines = told(content)
    assert fine
    assert len(lines) == 3


def test_others_who_use_the_same_claim_are_not_named() -> None:
    content = load("running")
    for claim in content["claims"].values():
        claim["status"]["reservedFor"].append({"resource": "pods", "name": "somebody-else", "uid": "u"})
    assert "somebody-else" not in "\n".join(told(content)[1])


def test_only_what_the_view_role_shows_is_needed() -> None:
    api = Api(load("killed"), "mutatingwebhookconfigurations")
    found = recorded(api, "explained-1", "killed")  # type: ignore[arg-type]
    assert (explain(found).fine, explain(found).lines) == told(load("killed"))
    assert api.asked == ["pods", "resourceclaims", "events", "namespaces", "mutatingwebhookconfigurations"]
    assert found.release == "gpu-share-system", "the usual one, where the release may not be read"


def test_what_may_not_be_read_is_reported_with_a_way_out() -> None:
    found = recorded(Api(load("killed"), "resourceclaims", "events"), "explained-1", "killed")  # type: ignore[arg-type]
    fine, lines = explain(found).fine, explain(found).lines
    assert fine
    assert "ClusterRole gpu-share-view" in lines[-2]
    assert "ClusterRole view" in lines[-1]
    assert row(lines)[1:4] == ["4Gi", "not known", "N/A"]


@pytest.mark.parametrize(
    ("refused", "status", "says"),
    [("", 403, "there is no pod other"), ("pods", 403, "may not read pod"), ("pods", 500, "no")],
)
def test_no_pod_is_a_sentence(refused: str, status: int, says: str) -> None:
    with pytest.raises(GpuShareError, match=says):
        recorded(Api(load("killed"), refused, status=status), "explained-1", "other")  # type: ignore[arg-type]
    with pytest.raises(GpuShareError, match="there is no namespace nowhere" if not refused else says):
        recorded(Api(load("killed"), refused, status=status), "nowhere", "other")  # type: ignore[arg-type]


def test_a_server_that_fails_is_not_taken_for_a_right_that_is_missing() -> None:
    with pytest.raises(ClusterError):
        recorded(Api(load("killed"), "events", status=500), "explained-1", "killed")  # type: ignore[arg-type]


@pytest.mark.parametrize(("words", "namespace"), [(["a/x"], "a"), (["x", "-n", "b"], "b"), (["x"], "of-the-context")])
def test_the_namespace_is_the_pods_own_the_options_or_the_contexts(
    words: list[str], namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(_api: object, where: str, name: str) -> PodRecord:
        asked.append(f"{where}/{name}")
        return PodRecord(**load("killed"))

    monkeypatch.setattr(reading, "recorded", answer)
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "of-the-context"}}
    user = {"name": "u", "user": {"token": "t"}}
    kubeconfig = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "x"}
    (tmp_path / "config").write_text(json.dumps(kubeconfig))
    assert main(["explain", *words, "--kubeconfig", str(tmp_path / "config")]) == 1
    assert asked == [f"{namespace}/x"]


def test_no_cluster_says_how_to_ask_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "x", "--kubeconfig", str(tmp_path / "missing")]) == 1
    assert "--state DIR" in capsys.readouterr().err


def test_texts_of_tenants_cannot_drive_the_terminal() -> None:
    content = load("killed")
    content["events"][0]["message"] = "a\x1b[2J\nb"
    content["pod"]["metadata"]["annotations"]["gpu-share.io/memory"] = "\x1b[2J"
    assert all(line.isprintable() for line in told(content)[1])


PATHS = [
    ("pod", "spec"), ("pod", "status"), ("pod", "metadata", "annotations"), ("pod", "spec", "containers"),
    ("pod", "spec", "resourceClaims"), ("pod", "status", "containerStatuses"), ("pod", "status", "conditions"),
]  # fmt: skip


@given(st.sampled_from(PATHS), st.none() | st.integers() | st.text(max_size=3) | st.lists(st.none(), max_size=2))
def test_objects_of_another_shape_are_explained_as_far_as_they_go(path: tuple[str, ...], value: object) -> None:
    content = load("killed")
    holder: Any = content
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    assert told(content)[1]
