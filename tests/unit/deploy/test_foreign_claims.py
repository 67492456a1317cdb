"""The chart gives the enforcer rights for claims of NVIDIA's DRA driver only where it reads them."""

import pytest

from tests.support import helm

pytestmark = pytest.mark.controlplane  # they need helm, which make integration brings


@pytest.mark.parametrize(
    ("value", "verbs"),
    [
        ("off", ["get"]), ("report", ["get", "list", "watch"]), ("enforce", ["get", "list", "watch"]),
    ],
)  # fmt: skip
def test_claims_are_listed_only_if_the_value_is_not_off(value: str, verbs: list[str]) -> None:
    helm.need()
    found = helm.objects(f"--set-string=enforcer.foreignClaims={value}")
    (role,) = (
        each for each in found if each["metadata"]["name"] == "gpu-share-enforcer" and each["kind"] == "ClusterRole"
    )
    (rule,) = (each for each in role["rules"] if each["resources"] == ["resourceclaims"])
    assert rule["verbs"] == verbs
    (daemons,) = (
        each for each in found if each["kind"] == "DaemonSet" and each["metadata"]["name"] == "gpu-share-enforcer"
    )
    assert f"--foreign-claims={value}" in daemons["spec"]["template"]["spec"]["containers"][0]["args"]
