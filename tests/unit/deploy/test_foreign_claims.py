"""The chart gives the enforcer rights for claims of NVIDIA's DRA driver only where it reads them."""

import pytest

from tests.support import helm

pytestmark = pytest.mark.controlplane  # they need helm, which make integration brings


@pytest.mark.parametrize("value", ["off", "report", "enforce"])
def test_claims_and_slices_are_watched_only_if_the_value_is_not_off(value: str) -> None:
    helm.need()
    found = helm.objects(f"--set-string=enforcer.foreignClaims={value}")
    (role,) = (
        each for each in found if each["metadata"]["name"] == "gpu-share-enforcer" and each["kind"] == "ClusterRole"
    )
    verbs = {each["resources"][0]: each["verbs"] for each in role["rules"] if len(each["resources"]) == 1}
    assert verbs["resourceclaims"] == (["get"] if value == "off" else ["get", "list", "watch"])
    assert ("watch" in verbs["resourceslices"]) is (value != "off")
    (daemons,) = (
        each for each in found if each["kind"] == "DaemonSet" and each["metadata"]["name"] == "gpu-share-enforcer"
    )
    assert f"--foreign-claims={value}" in daemons["spec"]["template"]["spec"]["containers"][0]["args"]
