"""Two releases meet in one pod: an injected manifest is renewed, and replicas of both admit what the other wrote."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from tests.support.extent import trials
from tests.support.sidecar_changes import ADMITTED, DIGEST, REFUSED, VOLUMES, Change, sidecar
from tests.unit.webhook import oracle
from tests.unit.webhook.generated import Generated, pods
from webhook.mutation import sidecar_image
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.settings import Settings

Json = dict[str, Any]
OURS = Settings()
EARLIER = Settings(
    image="gpu-share:0.0.9",
    image_pull_policy="Never",
    sidecar_requests={"cpu": "5m", "memory": "32Mi"},
    sidecar_limits={"cpu": "100m", "memory": "64Mi"},
    tolerations=(),
    across_nodes="binpack",
)
PINNED = Settings(image=f"registry.example/gpu-share@{DIGEST}")
RELEASES = (OURS, EARLIER, PINNED, Settings(image=f"registry.example/team/gpu-share:0.2.0@{DIGEST[:-1]}0"))
ARBITRARY = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1) | st.sampled_from(["", "x", "Unconfined", "gpu-share", "PATH", "/"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "type", "exec", "add", "command", "claims"]), inner, max_size=3)
    ),
    max_leaves=6,
)
thoroughly = settings(max_examples=trials(40, 2000), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def by(release: Settings, pod: Json) -> Mutation:
    return mutate_pod(pod, policy=NamespacePolicy(), settings=release)


def admitted(release: Settings, pod: Json) -> Json:
    decision = by(release, pod)
    after: Json = jsonpatch.apply_patch(pod, copy.deepcopy(decision.patch))
    assert after == decision.pod
    assert {each["op"] for each in decision.patch} <= {"add", "replace"}
    assert by(release, after).patch == []
    return after


def a_pod(**more: Any) -> Json:
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    spec = {"containers": [{"name": "main", "image": "x"}], "volumes": [*VOLUMES], **more}
    return {"metadata": metadata, "spec": spec}


def in_any_order(pod: Json) -> Json:
    for _, container in oracle.containers(pod):
        container["env"].sort(key=lambda entry: entry["name"])
    return pod


@thoroughly
@given(pods(), st.lists(st.sampled_from(RELEASES), min_size=2, max_size=4))
def test_releases_that_alternate_admit_each_pod_and_each_leaves_its_own(
    generated: Generated, order: list[Settings]
) -> None:
    pod = generated.pod
    for release in order:
        pod = admitted(release, pod)
        assert oracle.problems(pod, generated.wanted, generated.gpus) == []
        # A digest alone is of no release: it stays where the rest of the sidecar is this release's.
        assert sidecar(pod)["image"] in {release.image, PINNED.image}
        assert [each["name"] for each in pod["spec"]["initContainers"]].count("gpu-share") == 1


@pytest.mark.parametrize("change", ADMITTED, ids=lambda each: each.name)
def test_hardening_of_another_releases_sidecar_stays(change: Change) -> None:
    pod = admitted(OURS, change.apply(admitted(EARLIER, a_pod())))
    assert sidecar(pod)["image"] == OURS.image or change.at == ("image",)
    ours = {("image",), ("resources", "limits")}
    assert change.at in ours or change.stands(pod)


@pytest.mark.parametrize("change", [each for each in REFUSED if "securityContext" in each.refused])
def test_rights_are_refused_in_another_releases_sidecar_as_well(change: Change) -> None:
    with pytest.raises(PolicyDenied, match="another webhook"):
        by(OURS, change.apply(admitted(EARLIER, a_pod())))


@pytest.mark.parametrize("change", REFUSED, ids=lambda each: each.name)
def test_no_harmful_change_survives_a_renewal(change: Change) -> None:
    pod = change.apply(admitted(EARLIER, a_pod()))
    try:
        after = admitted(OURS, pod)
    except PolicyDenied:
        return
    assert sidecar(after) == sidecar(admitted(OURS, admitted(EARLIER, a_pod())))


def test_what_a_later_release_may_write_is_renewed() -> None:
    pod = admitted(OURS, a_pod())
    later = sidecar(pod)
    later |= {"image": "gpu-share:7", "command": ["gpu-share"], "args": ["watch"], "workingDir": "/srv"}
    later["env"].append({"name": "GPU_SHARE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    later["lifecycle"] = {"preStop": {"exec": {"command": ["gpu-share", "leave"]}}}
    later["livenessProbe"] = {"exec": {"command": ["gpu-share", "alive"]}}
    later["startupProbe"] = {"exec": {"command": ["gpu-share", "ready"]}}
    later["volumeMounts"].append({"name": "gpu-share-socket", "mountPath": "/run/gpu-share/socket"})
    later["resources"]["claims"].append({"name": "gpu-share", "request": "gpu-share-2"})
    main = pod["spec"]["containers"][0]
    main["resources"]["claims"] = [{"name": "gpu-share", "request": "c-main"}]
    for entry in main["env"]:
        if entry["name"] == "CUDA_MPS_PIPE_DIRECTORY":
            entry["value"] = "/run/gpu-share/mps-2/pipe"
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "gpu-share-0123456789abcdef0123"
    assert in_any_order(admitted(OURS, pod)) == in_any_order(admitted(OURS, a_pod()))


def test_an_annotation_edited_in_an_injected_manifest_changes_the_share() -> None:
    pod = admitted(EARLIER, a_pod())
    pod["metadata"]["annotations"]["gpu-share.io/memory"] = "8Gi"
    fresh = a_pod()
    fresh["metadata"]["annotations"]["gpu-share.io/memory"] = "8Gi"
    assert in_any_order(admitted(OURS, pod))["spec"] == in_any_order(admitted(OURS, fresh))["spec"] | {
        "affinity": pod["spec"]["affinity"]
    }


@pytest.mark.parametrize("entry", [
    {"resourceClaimName": "mine"},
    {"resourceClaimTemplateName": "mine"},
    {"resourceClaimTemplateName": "gpu-share-0123456789abcdef", "resourceClaimName": "mine"},
])  # fmt: skip
def test_an_entry_of_the_claims_name_that_is_not_ours_stays_refused(entry: Json) -> None:
    pod = admitted(EARLIER, a_pod())
    pod["spec"]["resourceClaims"] = [{"name": "gpu-share", **entry}]
    with pytest.raises(PolicyDenied, match="resourceClaims"):
        by(OURS, pod)


def test_a_template_without_the_sidecar_beside_it_stays_refused() -> None:
    claims = [{"name": "gpu-share", "resourceClaimTemplateName": "gpu-share-0123456789abcdef"}]
    with pytest.raises(PolicyDenied, match="resourceClaims"):
        by(OURS, a_pod(resourceClaims=claims))


@pytest.mark.parametrize(("standing", "wanted", "expected"), [
    ("gpu-share:1", "gpu-share:1", "gpu-share:1"),
    ("gpu-share:1@sha256:a", "gpu-share:1", "gpu-share:1@sha256:a"),
    ("gpu-share@sha256:a", "gpu-share:1", "gpu-share@sha256:a"),
    ("r:5000/x/gpu-share:1", "gpu-share:1", "r:5000/x/gpu-share:1"),
    ("gpu-share:0@sha256:a", "gpu-share:1", "gpu-share:1"),
    ("gpu-share", "gpu-share:1", "gpu-share:1"),
    ("gpu-share", "gpu-share:latest", "gpu-share"),
    ("gpu-share:1", "gpu-share:1@sha256:a", "gpu-share:1@sha256:a"),
    ("gpu-share:1", "gpu-share@sha256:a", "gpu-share@sha256:a"),
    ("gpu-share:1@sha256:b", "gpu-share:1@sha256:a", "gpu-share:1@sha256:a"),
    ("m/gpu-share:1@sha256:a", "gpu-share@sha256:a", "m/gpu-share:1@sha256:a"),
])  # fmt: skip
def test_an_image_is_renewed_unless_it_is_of_this_release(standing: str, wanted: str, expected: str) -> None:
    assert sidecar_image.renewed(standing, wanted) == expected


@thoroughly
@given(st.data())
def test_whatever_stands_in_the_sidecar_is_refused_or_settled_by_one_rewriting(data: st.DataObject) -> None:
    pod = admitted(data.draw(st.sampled_from(RELEASES)), a_pod())
    keys = [*sidecar(pod), "command", "envFrom", "lifecycle", "livenessProbe", "workingDir", "volumeDevices"]
    target = sidecar(pod)
    key = data.draw(st.sampled_from(keys))
    if isinstance(target.get(key), dict) and data.draw(st.booleans()):
        target, key = target[key], data.draw(st.sampled_from([*target[key], "seLinuxOptions", "procMount"]))
    target[key] = data.draw(ARBITRARY)
    try:
        admitted(OURS, pod)
    except PolicyDenied as refused:
        assert refused.field
