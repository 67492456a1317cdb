"""A tenant adds what means nothing, so that a pod which is refused looks like one that asks for no share."""

import copy
from typing import Any

import pytest

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from tests.golden.cases import Case, cases
from tests.unit.webhook.mutation.test_corpus import REFUSED as REFUSED_OF_CORPUS
from tests.unit.webhook.mutation.test_corpus import answered
from tests.unit.webhook.mutation.test_corpus import templates as corpus  # noqa: F401 - a fixture
from webhook.caches import CLAIM, TEMPLATE, KnownClaims
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

Json = dict[str, Any]
HONEST = "claim/honest"


def entry(pod: Json) -> None:
    """Name somebody's claim of our class, for no container."""
    pod["spec"]["resourceClaims"] = [
        *(pod["spec"].get("resourceClaims") or []), {"name": "decoy", "resourceClaimName": "honest"}
    ]  # fmt: skip


def entry_of_a_template(pod: Json) -> None:
    pod["spec"]["resourceClaims"] = [
        *(pod["spec"].get("resourceClaims") or []), {"name": "decoy", "resourceClaimTemplateName": "own"}
    ]  # fmt: skip


def container(pod: Json) -> None:
    """Let a container use it that asks for nothing."""
    entry(pod)
    decoy = {"name": "decoy", "image": "pause", "resources": {"claims": [{"name": "decoy"}]}}
    pod["spec"]["containers"] = [*pod["spec"]["containers"], decoy]


def label(pod: Json) -> None:
    metadata = pod.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), "gpu-share.io/managed": "true"}


def everything(pod: Json) -> None:
    container(pod)
    entry_of_a_template(pod)
    label(pod)


DECOYS = {
    "entry": entry,
    "template": entry_of_a_template,
    "container": container,
    "label": label,
    "everything": everything,
}


def well_formed(pod: Json) -> bool:
    spec = pod.get("spec")
    return isinstance(spec, dict) and isinstance(spec.get("containers"), list) and isinstance(pod.get("metadata"), dict)


REFUSED = [case for case in cases() if case.refused and well_formed(case.pod)]
"""Pods of another shape are refused by the API server itself, before any webhook sees them."""


def test_there_are_refusals_to_get_around() -> None:
    assert len(REFUSED) > 50


@pytest.mark.parametrize("decoy", DECOYS)
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.folder.name)
def test_no_decoy_gets_a_refused_pod_admitted(case: Case, decoy: str) -> None:
    pod = copy.deepcopy(case.pod)
    DECOYS[decoy](pod)
    with pytest.raises(PolicyDenied):
        case.decide(pod, (HONEST, "template/own"))


@pytest.mark.parametrize("decoy", DECOYS)
def test_no_decoy_gets_a_refused_pod_of_the_corpus_admitted(corpus: list[Json], decoy: str) -> None:  # noqa: F811 - fixture
    refused = [pod for pod in corpus if isinstance(answered(pod), PolicyDenied)]
    assert len(refused) == REFUSED_OF_CORPUS
    for pod in map(copy.deepcopy, refused):
        DECOYS[decoy](pod)
        with pytest.raises(PolicyDenied):
            mutate_pod(
                pod, policy=NamespacePolicy(), settings=Settings(), own_claims=frozenset({HONEST, "template/own"})
            )


def test_more_than_the_maximum_is_refused_beside_a_decoy_in_a_share_made_by_hand() -> None:
    """The way a tenant with nothing but the right to create pods had 14 GiB where its maximum was 2 GiB."""
    asked = {
        "metadata": {"name": "b1", "annotations": {"gpu-share.io/memory": "14Gi"}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    forged = copy.deepcopy(dict(mutate_pod(asked, policy=NamespacePolicy(), settings=Settings()).pod))
    entry(forged)
    with pytest.raises(PolicyDenied, match="max-memory"):
        mutate_pod(
            forged,
            policy=NamespacePolicy(max_memory_mib=2048),
            settings=Settings(),
            own_claims=frozenset({HONEST}),
        )


def claim(name: str, **metadata: Any) -> Json:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu-share.io"}}]}}
    return {"metadata": {"name": name, "namespace": "team", **metadata}, "spec": spec}


def test_claims_that_pods_own_and_templates_of_gpu_share_never_count() -> None:
    own = KnownClaims()
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    own.reset(CLAIM, [claim("made", ownerReferences=[owner]), claim("written")])
    own.event(CLAIM, "ADDED", claim("made-later", ownerReferences=[owner]))
    own.reset(TEMPLATE, [])
    template = {**claim("gpu-share-0123456789abcdef"), "spec": {"spec": claim("")["spec"]}}
    own.event(TEMPLATE, "ADDED", template)
    names = own.own("team")
    found = [each in names for each in ("claim/made", "claim/made-later", "claim/written")]
    assert found == [False, False, True]
    assert "template/gpu-share-0123456789abcdef" not in names
