"""Which container pod-wide annotations mean, before and after others insert theirs."""

import copy
from itertools import product
from typing import Any

import pytest

from gpushare.contract import (
    CLAIM,
    COMPUTE,
    COMPUTE_OF,
    DEFAULT_CONTAINER,
    DEFAULT_MEMORY,
    MEMORY,
    MEMORY_OF,
    MIG_PROFILE,
    MIG_PROFILE_OF,
)
from gpushare.main_container import PREFIXES, PROXIES, choose, key_for, main_container, uses_our_claim
from gpushare.namespace_policy import NamespacePolicy
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

Object = dict[str, Any]


def app(name: str, *, shares: bool = False, request: str | None = None) -> Object:
    claims = [{"name": CLAIM, "request": request or name}] if shares else []
    return {"name": name, "image": "a", "resources": {"claims": claims}}


def test_the_first_container_that_is_no_known_proxy() -> None:
    assert main_container({}, [app("model"), app("istio-proxy")]) == "model"
    assert main_container({}, [app("istio-proxy"), app("envoy"), app("model"), app("other")]) == "model"
    assert main_container({}, [app("envoy"), app("istio-proxy")]) == "envoy", "there are only proxies"


@pytest.mark.parametrize("name", ["fluid-fuse-0", "jfs-mount", "consul-dataplane-web", "csql-team-db", "fluent-bit"])
def test_what_storage_mesh_and_log_webhooks_insert_first_is_no_main_container(name: str) -> None:
    apps = [app(name), app("model")]
    assert main_container({}, apps) == "model"
    assert main_container({DEFAULT_CONTAINER: name}, apps) == "model"
    assert choose({MEMORY: "1Gi"}, apps).others == ()


def test_default_container_wins_over_the_order_unless_it_names_a_proxy_or_nothing() -> None:
    apps = [app("model"), app("web"), app("istio-proxy")]
    assert main_container({DEFAULT_CONTAINER: "web"}, apps) == "web"
    assert main_container({DEFAULT_CONTAINER: "istio-proxy"}, apps) == "model"
    assert main_container({DEFAULT_CONTAINER: "gone"}, apps) == "model"
    assert main_container({DEFAULT_CONTAINER: ["web"]}, apps) == "model"


def test_the_container_that_uses_our_claim_wins_over_everything() -> None:
    apps = [app("first"), app("model", shares=True), app("web")]
    assert main_container({DEFAULT_CONTAINER: "web", MEMORY: "1Gi"}, apps) == "model"
    assert main_container({MEMORY: "1Gi"}, [app("web"), app("envoy", shares=True)]) == "envoy"


def test_a_container_that_uses_the_request_of_another_is_not_the_main_one() -> None:
    assert main_container({MEMORY: "1Gi"}, [app("model"), app("web", shares=True, request="model")]) == "model"


def test_of_several_that_use_our_claim_the_one_without_an_annotation_of_its_own() -> None:
    apps = [app("worker", shares=True), app("model", shares=True)]
    assert main_container({MEMORY: "1Gi", MEMORY_OF + "worker": "1Gi"}, apps) == "model"


def test_of_several_with_annotations_of_their_own_the_one_that_lacks_what_stands_pod_wide() -> None:
    apps = [app("worker", shares=True), app("model", shares=True)]
    annotations = {MEMORY: "1Gi", COMPUTE: "10", MEMORY_OF + "worker": "1Gi", COMPUTE_OF + "worker": "5"}
    assert main_container({**annotations, COMPUTE_OF + "model": "5"}, apps) == "model"


def test_an_annotation_that_stands_pod_wide_is_not_taken_from_a_container_without_a_share_yet() -> None:
    apps = [app("model"), app("worker", shares=True)]
    assert main_container({MEMORY: "1Gi", MEMORY_OF + "worker": "1Gi"}, apps) == "model"


def test_others_are_those_that_the_author_may_have_meant() -> None:
    apps = [app("a"), app("b"), app("istio-proxy"), app("c")]
    assert choose({MEMORY: "1Gi"}, apps).others == ("b", "c")
    assert choose({MEMORY: "1Gi", MEMORY_OF + "b": "1Gi"}, apps).others == ("c",)
    assert choose({DEFAULT_CONTAINER: "c"}, apps).others == ()
    assert choose({DEFAULT_CONTAINER: "gone"}, apps).others == ("b", "c")
    assert choose({MEMORY: "1Gi"}, [app("a", shares=True), app("b")]).others == ()


@pytest.mark.parametrize("pod_wide", [{MEMORY: "1Gi"}, {MEMORY: "1Gi", COMPUTE: "10"}, {MIG_PROFILE: "1g.10gb"}])
@pytest.mark.parametrize("name", ["b", "b" * 22, "b" * 63])
def test_whoever_follows_the_warning_gives_the_share_to_the_other_container_at_once(
    pod_wide: Object, name: str
) -> None:
    spec: Object = {"containers": [{"name": "a" * 63, "image": "x"}, {"name": name, "image": "x"}]}
    first = mutate_pod(
        {"metadata": {"annotations": pod_wide}, "spec": spec}, policy=NamespacePolicy(), settings=Settings()
    )
    (warning,) = [each for each in first.warnings if each.startswith("aaa") and " has the share; " in each]
    assert not warning.endswith("...")
    verb, key, *rest = warning.replace("<container>", name).partition("; to change it, ")[2].split()
    if verb == "set":
        followed = {**pod_wide, key.removesuffix(":"): rest[0]}
    else:
        (_, amount), *others = pod_wide.items()
        followed = {key: amount, **dict(others)}
    pod = {"metadata": {"annotations": followed}, "spec": spec}
    second = mutate_pod(pod, policy=NamespacePolicy(), settings=Settings())
    assert [uses_our_claim(each) for each in second.pod["spec"]["containers"]] == [False, True]
    assert not [each for each in second.warnings if " has the share; " in each]


def test_annotations_that_name_a_container_leave_no_doubt() -> None:
    apps = [app("a"), app("b")]
    assert choose({MEMORY_OF + "a": "1Gi"}, apps).others == ()
    assert choose({COMPUTE: "10", MEMORY_OF + "a": "1Gi"}, apps).others == ("b",)
    assert choose({"gpu-share.io/gpu-model": "H100"}, apps).others == ("b",)


def test_where_all_that_use_our_claim_are_named_it_stays_one_of_them() -> None:
    named = {MEMORY: "1Gi", MEMORY_OF + "model": "1Gi"}
    for default in ("gone", "envoy"):
        apps = [app("web"), app("envoy"), app("model", shares=True)]
        assert main_container(named | {DEFAULT_CONTAINER: default}, apps) == "model"
    apps = [app("worker", shares=True), app("model", shares=True)]
    lacking = named | {COMPUTE_OF + "worker": "5"}
    assert main_container(lacking, apps) == "worker"
    assert main_container(lacking | {DEFAULT_CONTAINER: "model"}, apps) == "model"


def test_the_annotation_for_another_container_is_of_the_kind_that_stands_pod_wide() -> None:
    assert key_for({MEMORY: "1Gi", COMPUTE: "10"}, "b") == MEMORY_OF + "b"
    assert key_for({MIG_PROFILE: "1g.10gb"}, "b") == "mig-profile.gpu-share.io/b"
    assert key_for({}, "b") == MEMORY_OF + "b"


@pytest.mark.parametrize("field", [None, 7, "x", [], {"claims": None}, {"claims": [None, 7]}, {"claims": {}}])
def test_what_has_another_shape_uses_no_claim(field: object) -> None:
    assert main_container({}, [app("envoy"), {"name": "model", "resources": field}]) == "model"


POLICY = NamespacePolicy.from_annotations({DEFAULT_MEMORY: "1Gi"})
ANNOTATIONS: list[Object] = [
    {MEMORY: "1Gi"},
    {MEMORY: "1Gi", MEMORY_OF + "b": "2Gi"},
    {MEMORY: "1Gi", MEMORY_OF + "a": "2Gi"},
    {MEMORY: "1Gi", MEMORY_OF + "a": "2Gi", MEMORY_OF + "b": "2Gi"},
    {MEMORY: "1Gi", COMPUTE: "10", COMPUTE_OF + "b": "5"},
    {MEMORY: "1Gi", DEFAULT_CONTAINER: "b"},
    {MEMORY: "1Gi", DEFAULT_CONTAINER: "gone", MEMORY_OF + "b": "2Gi"},
    {MEMORY: "1Gi", DEFAULT_CONTAINER: "envoy"},
    {MEMORY_OF + "b": "1Gi"},
    {MEMORY: "1Gi", MEMORY_OF + "a": "2Gi", DEFAULT_CONTAINER: "gone"},
    {MEMORY: "1Gi", MEMORY_OF + "a": "2Gi", DEFAULT_CONTAINER: "envoy"},
    {MEMORY: "1Gi", MEMORY_OF + "a": "2Gi", MIG_PROFILE_OF + "b": "1g.10gb"},
    {MEMORY: "1Gi", MEMORY_OF + "a": "2Gi", MIG_PROFILE_OF + "b": "1g.10gb", DEFAULT_CONTAINER: "gone"},
    {MEMORY: "1Gi", COMPUTE: "10", MEMORY_OF + "a": "2Gi", COMPUTE_OF + "a": "5", MEMORY_OF + "b": "1Gi"},
]


@pytest.mark.parametrize(
    ("annotations", "inserted"),
    list(product(ANNOTATIONS, ["linkerd-proxy", "in-house"])),
    ids=lambda each: str(each)[:160],
)
def test_a_container_inserted_after_the_first_rewrite_changes_no_share(annotations: Object, inserted: str) -> None:
    containers = [{"name": name, "image": "a"} for name in ("envoy", "a", "b")]
    pod: Object = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": containers}}
    first = copy.deepcopy(dict(mutate_pod(pod, policy=POLICY, settings=Settings()).pod))
    meddled = copy.deepcopy(first)
    meddled["spec"]["containers"].insert(0, {"name": inserted, "image": "a"})
    second = dict(mutate_pod(meddled, policy=POLICY, settings=Settings()).pod)
    assert second["metadata"] == first["metadata"]
    assert second["spec"]["resourceClaims"] == first["spec"]["resourceClaims"]
    assert second["spec"]["containers"][1:] == first["spec"]["containers"]
    assert "resources" not in second["spec"]["containers"][0]


def test_proxies_are_names_that_a_container_can_have() -> None:
    for name in (*PROXIES, *PREFIXES):
        assert name.replace("-", "").isalnum()
        assert name == name.lower()
