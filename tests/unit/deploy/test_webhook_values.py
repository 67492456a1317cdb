"""What the chart says to the webhook reaches it; about its clients, nobody is let in by a mistake."""

import re

import pytest

from tests.support import helm
from tests.unit.deploy.test_chart import SCHEMA, VALUES, deployment, environment, leaves, of, other, setting
from webhook.claim_templates.controller import ADMISSION_WAIT
from webhook.flags import Options
from webhook.informers import GET_TIMEOUT

pytestmark = pytest.mark.controlplane  # they need helm, which make integration brings


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    helm.need()


def test_what_the_webhook_is_notified_is_understood_by_it() -> None:
    changed = ("webhook.maxMemory", "webhook.rootTenants", "webhook.logLevel", "webhook.retention", "runtimeClassName")
    options = tuple(setting(where, other(where, dict(leaves(VALUES))[where])) for where in changed)
    read = Options.read([], environment(*options))
    assert (read.retention, read.settings.max_memory_mib, read.settings.root_tenants) == (301, 81920, "refuse")
    assert (read.settings.log_level, read.settings.runtime_class) == ("debug", "other")
    assert read.settings.tolerations == tuple(VALUES["webhook"]["shareTolerations"])
    assert read.settings.sidecar_limits == VALUES["sidecar"]["resources"]["limits"]


@pytest.mark.parametrize("seconds", [1, 30])
def test_the_api_server_waits_for_every_webhook_as_long_as_the_chart_says(seconds: int) -> None:
    found = of((f"--set=webhook.timeoutSeconds={seconds}",), "MutatingWebhookConfiguration")
    assert [each["timeoutSeconds"] for one in found for each in one["webhooks"]] == [seconds, seconds]


@pytest.mark.parametrize("seconds", ["0", "31", "1.5"])
def test_a_time_that_the_api_server_cannot_wait_is_refused(seconds: str) -> None:
    with pytest.raises(helm.HelmError, match="/webhook/timeoutSeconds"):
        helm.template(f"--set-json=webhook.timeoutSeconds={seconds}")


def test_a_review_waits_for_less_than_the_shortest_timeout() -> None:
    shortest = SCHEMA["properties"]["webhook"]["properties"]["timeoutSeconds"]["minimum"]
    assert shortest > GET_TIMEOUT + ADMISSION_WAIT


def test_without_tolerations_a_share_gets_none() -> None:
    assert Options.read([], environment("--set-json=webhook.shareTolerations=[]")).settings.tolerations == ()


def test_clients_need_no_certificate_by_default() -> None:
    assert Options.read([], environment()).clients is None


def test_the_ca_is_mounted_where_the_webhook_reads_it() -> None:
    options = ("--set=webhook.clientCA=kube-root-ca.crt,webhook.clientName=kube-apiserver-kubelet-client",)
    clients = Options.read([], environment(*options)).clients
    assert clients
    assert clients.name == "kube-apiserver-kubelet-client"
    spec = deployment(options)["spec"]["template"]["spec"]
    mounts = {each["mountPath"]: each["name"] for each in spec["containers"][0]["volumeMounts"]}
    volume = next(each for each in spec["volumes"] if each["name"] == mounts[str(clients.ca.parent)])
    items = [{"key": "ca.crt", "path": clients.ca.name}]
    assert volume["configMap"] == {"name": "kube-root-ca.crt", "items": items}, "not optional: no pod starts without it"


@pytest.mark.parametrize(("set_", "said"), [
    ("webhook.clientCA=Clients", "/webhook/clientCA"),
    ("webhook.clientName=x", "webhook.clientCA is empty"),
    ("webhook.clientCA=kube-root-ca.crt", "set webhook.clientName"),
])  # fmt: skip
def test_a_value_that_lets_others_in_is_refused(set_: str, said: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(said)):
        helm.template(f"--set={set_}")
