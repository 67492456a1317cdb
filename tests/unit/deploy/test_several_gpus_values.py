"""What the chart says about compute and several GPUs reaches those who act on it, in words that they know."""

import re

import pytest

from enforcer import flags as enforcer_flags
from tests.support import helm
from tests.unit.deploy.test_chart import enforcer, environment
from webhook.flags import Options

pytestmark = pytest.mark.controlplane  # they need helm, which make integration brings


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    helm.need()


@pytest.mark.parametrize(("set_", "percent"), [
    ("webhook.replicas=2", 100), ("compute.overcommit=1.5", 150), ("compute.overcommit=2", 200),
    ("compute.overcommit=1.15", 115), ("compute.overcommit=10", 1000),
])  # fmt: skip
def test_webhook_and_enforcer_offer_the_same_compute(set_: str, percent: int) -> None:
    assert Options.read([], environment(f"--set={set_}")).settings.most_compute == percent
    words = enforcer(f"--set={set_}")["containers"][0]["args"]
    mine = [each for each in words if each.startswith("--compute")]
    assert enforcer_flags.parse([*mine, "--node=n"]).compute == percent


@pytest.mark.parametrize(("set_", "verdict"), [
    ("enforcer.mode=mps", "refuse"), ("enforcer.mode=mig", "refuse"), ("enforcer.mode=time-slicing", "allow"),
    ("webhook.severalGpus=allow", "allow"), ("enforcer.mode=time-slicing,webhook.severalGpus=refuse", "refuse"),
])  # fmt: skip
def test_several_gpus_are_for_those_that_are_shared_by_turns(set_: str, verdict: str) -> None:
    assert Options.read([], environment(f"--set={set_}")).settings.several_gpus == verdict


@pytest.mark.parametrize(("set_", "said"), [
    ("webhook.severalGpus=maybe", "/webhook/severalGpus"),
    ("compute.overcommit=0.5", "/compute/overcommit"),
    ("compute.overcommit=11", "/compute/overcommit"),
    ("compute.overcommit=much", "/compute/overcommit"),
])  # fmt: skip
def test_another_value_is_refused_by_its_name(set_: str, said: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(said)):
        helm.template(f"--set={set_}")
