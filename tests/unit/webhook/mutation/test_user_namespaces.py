"""Which pods get a user namespace of their own, and what is said of the others."""

from typing import Any

import pytest

from gpushare.namespace_policy import NamespacePolicy
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.settings import Settings

Json = dict[str, Any]
ISOLATE = Settings(root_tenants="isolate", host_network=True)


def answered(settings: Settings = ISOLATE, **spec: Any) -> Mutation:
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "a"}], **spec}}
    return mutate_pod(pod, policy=NamespacePolicy(host_paths=("/data",)), settings=settings)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"securityContext": {"runAsUser": 0}},
        {"securityContext": {"runAsNonRoot": False}},
        {
            "volumes": [
                {"name": "a", kind: {}} for kind in ("emptyDir", "configMap", "secret", "projected", "downwardAPI")
            ]
        },
        {"hostNetwork": False},
    ],
)
def test_a_pod_that_may_run_as_root_is_isolated_without_a_warning(spec: Json) -> None:
    found = answered(**spec)
    assert (found.pod["spec"]["hostUsers"], found.warnings) == (False, ())
    assert mutate_pod(found.pod, policy=NamespacePolicy(), settings=ISOLATE).patch == []


@pytest.mark.parametrize("context", [{"runAsNonRoot": True}, {"runAsUser": 1000}])
def test_a_pod_that_does_not_run_as_root_stays_as_it_is(context: Json) -> None:
    found = answered(securityContext=context)
    assert ("hostUsers" in found.pod["spec"], found.warnings) == (False, ())


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"hostUsers": True}, "spec.hostUsers"),
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "nfs": {}}]}, "spec.volumes[1]"),
        ({"volumes": [{"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]}, "spec.volumes[0]"),
        ({"volumes": [{"name": "b", "hostPath": {"path": "/data"}}]}, "spec.volumes[0]"),
        ({"containers": [{"name": "main", "volumeDevices": [{}]}]}, "spec.containers[0].volumeDevices"),
    ],
)
def test_a_pod_that_cannot_live_with_it_draws_a_warning_that_says_why(spec: Json, field: str) -> None:
    found = answered(**spec)
    assert found.pod["spec"].get("hostUsers") is spec.get("hostUsers")
    assert [field in each and "may run as root" in each for each in found.warnings] == [True]


def test_a_claim_of_the_pods_own_leaves_it_to_the_pod() -> None:
    claims = {"resourceClaims": [{"name": "mine", "resourceClaimName": "own"}]}
    container = {"name": "main", "image": "a", "resources": {"claims": [{"name": "mine"}]}}
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    for users, warned in ((None, True), (False, False)):
        spec = {"containers": [container], **claims} | ({} if users is None else {"hostUsers": users})
        pod = {"metadata": metadata, "spec": spec}
        own = frozenset({"claim/own"})
        found = mutate_pod(pod, policy=NamespacePolicy(), settings=ISOLATE, own_claims=own)
        assert any("hostUsers: false" in each for each in found.warnings) is warned


def test_who_isolates_itself_draws_no_warning_where_root_is_allowed() -> None:
    assert answered(Settings(root_tenants="allow"), hostUsers=False).warnings == ()
    assert answered(Settings(root_tenants="allow")).warnings != ()
