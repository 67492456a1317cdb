"""What the chart says about placement reaches those who act on it, in words that they know."""

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


@pytest.mark.parametrize(("set_", "within", "across"), [
    ("webhook.replicas=2", "binpack", "none"),
    ("placement.withinNode=spread", "spread", "none"),
    ("placement.acrossNodes=binpack", "binpack", "binpack"),
    ("placement.acrossNodes=spread", "binpack", "spread"),
])  # fmt: skip
def test_webhook_and_enforcer_understand_what_they_are_notified(set_: str, within: str, across: str) -> None:
    assert Options.read([], environment(f"--set={set_}")).settings.across_nodes == across
    words = enforcer(f"--set={set_}")["containers"][0]["args"]
    found = enforcer_flags.parse([*(each for each in words if each.startswith("--within-node")), "--node=n"])
    assert found.within_node == within


@pytest.mark.parametrize(
    ("set_", "said"),
    [
        ("placement.acrossNodes=pack", "/placement/acrossNodes"),
        ("placement.withinNode=none", "/placement/withinNode"),
        ("enforcer.order=spread", "additional properties 'order' not allowed"),
    ],
)
def test_another_word_is_refused_by_its_name(set_: str, said: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(said)):
        helm.template(f"--set={set_}")
