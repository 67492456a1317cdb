"""``gpu-share explain`` on pods that ask for a share and have none."""

import argparse
import json
from typing import Any

import pytest

from gpushare.contract import MEMORY, MIRROR, NAMESPACE_LABEL
from gpushare_cli.explain.cluster_state import PodExplanation, explain
from gpushare_cli.explain.obstacles import closed
from gpushare_cli.explain.pod import recorded
from gpushare_cli.explain.pod_record import PodRecord
from gpushare_cli.inject import arguments, command
from tests.unit.gpushare_cli.explain.test_pod import Api, load


def namespace(name: str = "asr", **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}}


OPTED_IN = namespace(labels={NAMESPACE_LABEL: "true"})


def explained(around: dict[str, Any] | None, where: str = "asr", **annotations: str) -> PodExplanation:
    """A pod as the API server has it: it was placed, and a token is mounted."""
    metadata = {"name": "asking", "namespace": where, "uid": "u", "annotations": annotations}
    mount = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
    container = {"name": "main", "image": "x", "volumeMounts": [mount], "resources": {}}
    volumes = [{"name": "token", "projected": {"sources": []}}]
    pod = {
        "metadata": metadata,
        "spec": {"containers": [container], "nodeName": "n1", "volumes": volumes},
        "status": {"phase": "Running"},
    }
    parser = argparse.ArgumentParser()
    arguments.add_policy_options(parser)
    admit = command.admit_for([] if around is None else [around], parser.parse_args([]))
    return explain(PodRecord(pod=pod, claims={}, events=[], namespace=around), admit)


def findings(found: PodExplanation) -> list[tuple[str, str]]:
    return [(each.type, each.message) for each in found.findings]


@pytest.mark.parametrize(
    ("around", "where", "says"),
    [
        (namespace(), "asr", "namespace asr has not opted in"),
        (namespace(labels={NAMESPACE_LABEL: "True"}), "asr", "has not opted in (gpu-share.io/enabled is 'True'"),
        (namespace("kube-system"), "kube-system", "namespace kube-system is excluded"),
        (None, "kube-system", "namespace kube-system is excluded"),
        (OPTED_IN, "asr", "has opted in, but the webhook did not rewrite the pod"),
    ],
)
def test_a_pod_without_the_share_it_asks_for_has_the_reason(
    around: dict[str, Any] | None, where: str, says: str
) -> None:
    found = explained(around, where, **{MEMORY: "1Gi"})
    assert (found.fine, found.share, found.asks) == (False, False, True)
    assert "WITHOUT a share, although it requests one (gpu-share.io/memory: 1Gi)" in found.summary
    ((kind, message),) = findings(found)
    assert (kind, says in message) == ("noShare", True), message
    assert found.findings[0].hint


def test_the_release_is_where_the_webhook_configuration_says() -> None:
    service = {"clientConfig": {"service": {"namespace": "gpus"}}}
    configuration = {"metadata": {"name": "gpu-share"}, "webhooks": [service]}
    content = load("killed")
    content["claims"]["gpu-share"] = configuration
    found = recorded(Api(content), "explained-1", "killed")  # type: ignore[arg-type] # a stand-in
    assert found.release == "gpus"


@pytest.mark.parametrize(("release", "excluded"), [("gpus", False), ("asr", True)])
def test_the_namespace_of_the_release_is_excluded_wherever_that_is(release: str, excluded: bool) -> None:  # noqa: FBT001 - a parameter of the test
    message = next(closed(namespace(), "asr", release))[0]
    assert ("is excluded" in message) is excluded


def test_a_namespace_that_may_not_be_read_is_not_accused() -> None:
    found = explained(None, **{MEMORY: "1Gi"})
    ((kind, message),) = findings(found)
    assert kind == "unknown"
    assert "you may not read namespace asr" in message


@pytest.mark.parametrize(
    ("claims", "says"), [(None, "may not read the pod's ResourceClaims"), ({}, "do not exist: mine")]
)
def test_a_claim_of_its_own_that_cannot_be_read_is_not_taken_for_none(claims: Any, says: str) -> None:
    metadata = {"name": "asking", "namespace": "asr", "uid": "u", "annotations": {MEMORY: "1Gi"}}
    entry = {"name": "own", "resourceClaimName": "mine"}
    spec = {"containers": [{"name": "main"}], "resourceClaims": [entry]}
    record = PodRecord(pod={"metadata": metadata, "spec": spec}, claims=claims, events=[], namespace=OPTED_IN)
    found = explain(record)
    assert ("WITHOUT" in found.summary, found.fine) == (claims is not None, False)
    assert says in "".join(found.lines)


def test_a_namespace_that_is_being_deleted_is_named() -> None:
    around = namespace(labels={NAMESPACE_LABEL: "true"}, deletionTimestamp="2026-11-20T22:16:05Z")
    assert "namespace asr is being deleted" in findings(explained(around, **{MEMORY: "1Gi"}))[0][1]


def test_what_the_webhook_would_refuse_is_added() -> None:
    found = explained(namespace(), **{MEMORY: "4GB"})
    assert [each.reason for each in found.findings] == ["", "InvalidQuantity"]
    assert "metadata.annotations[gpu-share.io/memory]: '4GB' is not a quantity" in found.findings[1].message


def test_that_the_scheduler_placed_the_pod_is_not_held_against_it() -> None:
    """The webhook refuses pods that name a node; this one would be created without."""
    assert not any("nodeName" in message for _, message in findings(explained(OPTED_IN, **{MEMORY: "1Gi"})))


def test_a_mirror_of_a_static_pod_is_not_told_to_opt_in() -> None:
    ((_, message),) = findings(explained(namespace(), **{MEMORY: "1Gi", MIRROR: "hash"}))
    assert "mirrors a static pod" in message


def test_a_pod_that_asks_for_nothing_is_fine() -> None:
    found = explained(namespace())
    assert (found.fine, found.asks, found.lines) == (
        True, False, ["asr/asking has no share of a GPU: no annotation and no ResourceClaim of the pod requests one"],
    )  # fmt: skip


def test_annotations_of_any_length_are_cut_and_harmless() -> None:
    found = explained(namespace(), **{MEMORY: "\x1b[2J" + "9" * 200_000, "x" * 60 + ".gpu-share.io/y": "1"})
    assert all(line.isprintable() and len(line) <= 2100 for line in found.lines)
    assert len(json.dumps(found.json())) < 20_000
