"""The pod that is tried by dry run, and what is made of the answer."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.namespace_policy import NamespacePolicy
from gpushare.version import installed
from gpushare_cli.check.trial import CALLS, SECONDS, flaws_of, probe, trial
from tests.unit.gpushare_cli.check.api import Api
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

ELSEWHERE = Settings(
    image="registry.example/gpu-share:0.1.0",
    image_pull_policy="Always",
    tolerations=({"key": "a", "operator": "Exists"},),
    sidecar_limits={"cpu": "300m", "memory": "192Mi"},
    runtime_class="nvidia",
)


def rewritten(settings: Settings | None = None) -> Any:
    made = mutate_pod(probe(1024), policy=NamespacePolicy(), settings=settings or Settings()).pod
    return copy.deepcopy(dict(made))


@pytest.mark.parametrize("settings", [Settings(), ELSEWHERE])
def test_what_the_webhook_writes_has_no_flaw_whatever_the_chart_values_are(settings: Settings) -> None:
    assert list(flaws_of(rewritten(settings), NamespacePolicy(), exact=True)) == []


def env(pod: Any, name: str) -> Any:
    return next(each for each in pod["spec"]["containers"][0]["env"] if each["name"] == name)


FLAWS: dict[str, Callable[[Any], object]] = {
    "no label": lambda pod: pod["metadata"].pop("labels"),
    "no claim": lambda pod: pod["spec"].pop("resourceClaims"),
    "another template": lambda pod: pod["spec"]["resourceClaims"][0].update(resourceClaimTemplateName="gpu-share-0"),
    "no sidecar": lambda pod: pod["spec"].update(initContainers=[]),
    "the sidecar ends": lambda pod: pod["spec"]["initContainers"][0].pop("restartPolicy"),
    "another limit": lambda pod: env(pod, contract.MPS_MEMORY_LIMIT).update(value="0=9999M"),
    "a visible GPU": lambda pod: env(pod, contract.NVIDIA_VISIBLE_DEVICES).update(value="all"),
    "no request": lambda pod: pod["spec"]["containers"][0]["resources"].pop("claims"),
}


@pytest.mark.parametrize("name", FLAWS)
def test_what_is_missing_or_changed_is_a_flaw(name: str) -> None:
    pod = rewritten()
    FLAWS[name](pod)
    assert list(flaws_of(pod, NamespacePolicy(), exact=True)) != []


def test_of_a_webhook_of_another_release_only_its_mark_is_known() -> None:
    pod = rewritten()
    pod["spec"].pop("resourceClaims")
    assert list(flaws_of(pod, NamespacePolicy(), exact=False)) == []
    assert list(flaws_of(probe(1024), NamespacePolicy(), exact=False)) == ["the webhook did not rewrite the pod"]


class Server(Api):
    """Rewrites pods, or refuses them."""

    def __init__(self, refusals: dict[str, str] | None = None, **answers: Any) -> None:
        super().__init__({"deployments": [], **answers})
        self.refusals = refusals or {}
        self.tried: list[tuple[str, str]] = []

    def acting_as(self, user: str) -> "Acting":
        return Acting(self, user)

    def create(self, where: str, body: Any, **query: str) -> Any:
        assert query == {"dryRun": "All"}, "nothing may be made"
        namespace = where.split("/")[-2]
        self.tried.append((namespace, body["metadata"]["annotations"][contract.MEMORY]))
        if namespace in self.refusals:
            raise ClusterError(f"POST {where}: {self.refusals[namespace]}", 403)
        return dict(mutate_pod(body, policy=NamespacePolicy(), settings=Settings()).pod)


class Acting:
    """Makes claims and their templates as another user; ``refusals`` by that user's last name."""

    def __init__(self, server: Server, user: str) -> None:
        self.server, self.user = server, user

    def create(self, where: str, body: Any, **query: str) -> Any:
        assert query == {"dryRun": "All"}, "nothing may be made"
        kind, name = where.rsplit("/", 1)[-1], self.user.rsplit(":", 1)[-1]
        assert (kind, name) in {("resourceclaimtemplates", "gpu-share-webhook"), ("resourceclaims", MAKER)}
        requests = (body["spec"].get("spec") or body["spec"])["devices"]["requests"]
        assert requests[0]["exactly"]["deviceClassName"] == contract.DEVICE_CLASS
        if name in self.server.refusals:
            said = self.server.refusals[name]
            raise ClusterError(said, int(said[:3]) if said[:3].isdigit() else 403)


MAKER = "resource-claim-controller"


def namespace(name: str, **annotations: str) -> dict[str, Any]:
    labels = {contract.NAMESPACE_LABEL: "true"}
    noted = {f"{contract.GROUP}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {"metadata": {"name": name, "labels": labels, "annotations": noted}}


def asked(server: Server, named: str | None = None) -> tuple[str, str]:
    found = trial(server, named)  # type: ignore[arg-type] # it only reads and tries
    return found.level, found.detail


OUTSIDE = (
    'failed calling webhook "check.gpu-share.io": an error on the server ("gpu-share: namespace does not share GPUs")'
)
DEADLINE = 'failed calling webhook "check.gpu-share.io": failed to call webhook: context deadline exceeded'
UNTRUSTED = (
    'failed calling webhook "{}.gpu-share.io": failed to call webhook: Post "https://gpu-share-webhook.gpu-share-system'
    '.svc:443/mutate?timeout=3s": tls: failed to verify certificate: x509: {}'
)


RELEASE = [
    {
        "metadata": {
            "name": "gpu-share-webhook",
            "namespace": "gpu-share-system",
            "labels": {"app.kubernetes.io/version": installed()},
        }
    }
]
OLDER = [{"metadata": {"name": "gpu-share-webhook", "labels": {"app.kubernetes.io/version": "0.0.1"}}}]


@pytest.mark.parametrize("deployments", [[], OLDER])
def test_a_release_that_may_not_know_that_dry_run_is_not_asked(deployments: list[Any]) -> None:
    server = Server(namespaces=[], deployments=deployments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpushare_cli.check.installation.installed", lambda: "0.2.0")
        assert asked(server) == ("warning", "not tried: no namespace has opted in")
    assert server.tried == []


def test_without_an_opted_in_namespace_the_webhook_is_asked_all_the_same() -> None:
    leaving = namespace("a")
    leaving["metadata"]["deletionTimestamp"] = "now"
    for spaces in ([], [leaving, namespace("kube-system"), namespace("gpu-share-system")]):
        server = Server({"gpu-share-system": OUTSIDE}, namespaces=spaces, deployments=RELEASE)
        level, detail = asked(server)
        assert (level, "the webhook answers, but" in detail) == ("warning", True)
        assert {name for name, _ in server.tried} == {"gpu-share-system"}


def test_without_an_opted_in_namespace_a_webhook_that_does_not_answer_or_is_not_asked_is_wrong() -> None:
    down = 'failed calling webhook "check.gpu-share.io": Post "https://x": connection refused'
    assert asked(Server({"gpu-share-system": down}, namespaces=[], deployments=RELEASE))[0] == "wrong"
    assert asked(Server(namespaces=[], deployments=RELEASE))[0] == "wrong", (
        "the pod was taken: nobody asked the webhook"
    )


@pytest.mark.parametrize("hook", ["pods", "check"])
@pytest.mark.parametrize(
    "why",
    [
        "certificate has expired or is not yet valid: current time 2026-11-25T12:00:00Z is after 2026-11-20T00:00:00Z",
        "certificate is valid for other.svc, not gpu-share-webhook.gpu-share-system.svc",
        "certificate signed by unknown authority",
    ],
)
def test_a_serving_certificate_that_the_api_server_refuses_is_named_with_the_reason(hook: str, why: str) -> None:
    spaces = [namespace("gpu-share-system" if hook == "check" else "a")]
    refusals = dict.fromkeys(("a", "gpu-share-system"), UNTRUSTED.format(hook, why))
    found = trial(Server(refusals, namespaces=spaces, deployments=RELEASE), None)  # type: ignore[arg-type] # it only reads and tries
    assert found.level == "wrong"
    assert "Secret gpu-share-system/gpu-share-webhook-tls" in found.detail
    assert found.detail.endswith(why)
    assert "logs -n gpu-share-system deployment/gpu-share-certs" in found.hint
    issued = {"metadata": {"annotations": {"cert-manager.io/inject-ca-from": "a/b"}}}
    theirs = Server(refusals, namespaces=spaces, deployments=RELEASE, **{"gpu-share": issued})
    hint = trial(theirs, None).hint  # type: ignore[arg-type] # it only reads and tries
    assert "describe certificate -n gpu-share-system gpu-share-webhook" in hint
    assert "gpu-share-certs" not in hint


POLICY = "ValidatingAdmissionPolicy '{}' with binding 'b' denied request"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            'failed calling webhook "pods.gpu-share.io": context deadline exceeded',
            "networkpolicies -n gpu-share-system",
        ),
        ('failed calling webhook "a.example.io": context deadline exceeded', "describe mutatingwebhookconfigurations,"),
        (f"{POLICY.format('theirs')}: no", "kubectl describe validatingadmissionpolicies theirs"),
        (f"{POLICY.format('gpu-share-last-word')}: not rewritten", "names what refused the pod"),
        ("maximum cpu usage per Container is 5m, but limit is 100m", "sidecar.resources"),
        ("exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0", "placement.acrossNodes"),
    ],
)
def test_what_to_do_about_a_refusal_fits_who_refused(said: str, hint: str) -> None:
    server: Any = Server({"a": said, "gpu-share-system": OUTSIDE}, namespaces=[namespace("a")], deployments=RELEASE)
    assert hint in trial(server, None).hint


FAILING = 'failed calling webhook "a.example.io": failed to call webhook: Post "https://b": service "b" not found'
DENYING = 'admission webhook "a.example.io" denied the request: exceeded quota: of its own'


@pytest.mark.parametrize(("said", "ignore"), [(FAILING, True), (DENYING, False)])
@pytest.mark.parametrize(
    ("config", "called"),
    [
        ({"service": {"namespace": "hooks", "name": "b"}}, ["Service hooks/b", "endpointslices -n hooks"]),
        ({"url": "https://b.example/x"}, ["https://b.example/x"]),
    ],
)
def test_a_webhook_of_others_that_refuses_is_named_with_what_its_operator_can_do(
    said: str, config: Any, called: list[str], *, ignore: bool
) -> None:
    hooks = [{"name": "pods.gpu-share.io"}, {"name": "a.example.io", "clientConfig": config}]
    theirs = {"metadata": {"name": "theirs"}, "webhooks": hooks}
    server: Any = Server({"a": said}, namespaces=[namespace("a")], mutatingwebhookconfigurations=[theirs])
    found = trial(server, None)
    assert found.level == "wrong", "a denial that speaks of a quota is not one of a ResourceQuota"
    wanted = [*called, "kubectl describe mutatingwebhookconfigurations theirs", "namespaceSelector"]
    assert [each for each in wanted if each not in found.hint] == []
    assert ("failurePolicy: Ignore" in found.hint) is ignore


def test_who_may_not_read_webhook_configurations_learns_which_webhook_refused() -> None:
    server: Any = Server({"a": FAILING}, a=namespace("a"), mutatingwebhookconfigurations=403)
    assert "webhook a.example.io" in trial(server, "a").hint


def test_a_certificate_of_another_webhook_is_not_taken_for_ours() -> None:
    said = 'failed calling webhook "a.example.io": tls: failed to verify certificate: x509: certificate has expired'
    detail = asked(Server({"a": said}, namespaces=[namespace("a")]))[1]
    assert detail.startswith("refused in namespace a: ")


def test_each_namespace_is_tried_with_what_its_policy_allows() -> None:
    server = Server(namespaces=[namespace("b"), namespace("a", max_memory="700Mi")])
    level, detail = asked(server)
    assert (level, server.tried) == ("ok", [("a", "700Mi"), ("b", "1024Mi")])
    assert detail.startswith("the webhook added a share to a test pod in namespace a (dry run, ")
    assert detail.endswith("no default (each pod must set gpu-share.io/memory), at most 700Mi, over quota: kill")


def test_all_namespaces_have_to_refuse_for_the_release_to_be_wrong() -> None:
    spaces = [namespace("a"), namespace("b")]
    assert asked(Server({"a": "a policy of somebody else"}, namespaces=spaces))[0] == "warning"
    found = asked(Server(dict.fromkeys("ab", "failed calling webhook"), namespaces=spaces))
    assert (found[0], "refused in namespace a: " in found[1]) == ("wrong", True)


def test_a_quota_is_no_fault_of_the_release() -> None:
    assert asked(Server({"a": "pods is forbidden: exceeded quota: gpus"}, namespaces=[namespace("a")]))[0] == "warning"


def test_a_namespace_with_that_word_in_its_name_is_no_quota_and_a_refusal_of_a_policy_counts_more() -> None:
    assert asked(Server({"ml-quota": "was not rewritten"}, namespaces=[namespace("ml-quota")]))[0] == "wrong"
    refused = {"a": "pods is forbidden: exceeded quota: gpus", "b": "was not rewritten by the webhook"}
    level, detail = asked(Server(refused, namespaces=[namespace("a"), namespace("b")]))
    assert (level, "refused in namespace b" in detail) == ("wrong", True)


def test_a_named_namespace_is_tried_alone_and_has_to_have_opted_in() -> None:
    server = Server(a=namespace("a", default_memory="2Gi"))
    assert asked(server, "a")[0] == "ok"
    assert server.tried == [("a", "2048Mi")]
    other = {"metadata": {"name": "a"}}
    assert asked(Server(a=other), "a") == (
        "wrong", "namespace a has not opted in: annotations of gpu-share.io have no effect there",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "says"), [("kube-system", "cannot opt in"), ("gpu-share-system", "cannot opt in"), ("b", "no namespace b")]
)
def test_a_named_namespace_that_no_label_would_open_is_not_advised_to_opt_in(name: str, says: str) -> None:
    found = trial(Server(), name)  # type: ignore[arg-type] # it only reads and tries
    assert (found.level, says in found.detail, found.hint.startswith("kubectl label")) == ("wrong", True, False)


def test_a_namespace_whose_policy_cannot_be_read_is_wrong() -> None:
    level, detail = asked(Server(a=namespace("a", max_memory="80GB")), "a")
    assert (level, "80GB" in detail) == ("wrong", True)


def test_who_may_not_read_the_namespace_or_the_release_still_tries() -> None:
    server = Server(a=403, deployments=403)
    assert asked(server, "a")[0] == "ok"


def test_who_may_not_create_pods_has_not_asked() -> None:
    said = 'User "jo" cannot create resource "pods" in API group "" in the namespace "a"'
    with pytest.raises(ClusterError, match="cannot create"):
        asked(Server({"a": said}, a=namespace("a")), "a")


def test_nodes_that_do_not_enforce_stand_beside_the_policy_to_kill() -> None:
    def reported(node: str, *, enforcing: bool) -> dict[str, Any]:
        body = json.dumps({"version": "0.1.0", "enforcing": enforcing})
        return {"metadata": {"annotations": {contract.ENFORCER: body}}, "spec": {"nodeName": node}}

    slices = [reported("a-1", enforcing=False), reported("a-2", enforcing=True)]
    for policy, said in (("kill", "over quota: kill (not on a-1: enforcer.enforce is false)"), ("warn", "warn")):
        server = Server(namespaces=[namespace("a", on_exceed=policy)], resourceslices=slices)
        assert asked(server)[1].endswith(said)
    assert asked(Server(namespaces=[namespace("a")], resourceslices=slices[1:]))[1].endswith("over quota: kill")


def test_namespaces_that_refuse_are_named_beside_one_that_takes_the_pod() -> None:
    spaces = [namespace(each) for each in "abc"]
    level, detail = asked(Server({"b": "a policy denies sidecars"}, namespaces=spaces))
    assert (level, detail.startswith("1 of 3 namespaces: refused in namespace b: ")) == ("warning", True)
    assert "a policy denies sidecars" in detail


def test_the_last_of_many_namespaces_is_tried_too() -> None:
    many = [namespace(f"n{number:03}") for number in range(200)]
    level, detail = asked(Server({"n199": "maximum cpu usage per Container is 5m"}, namespaces=many))
    assert (level, detail.startswith("1 of 200 namespaces: refused in namespace n199: ")) == ("warning", True)


def test_namespaces_for_which_the_time_is_over_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(namespaces=[namespace(each) for each in "abc"])
    monkeypatch.setattr("gpushare_cli.check.trial.time.monotonic", lambda: SECONDS * len(server.tried) * 0.6)
    level, detail = asked(server)
    assert (level, [name for name, _ in server.tried]) == ("ok", ["a", "b"])
    assert detail.endswith("; not tried within 20 s: 1 of 3 namespaces")


def test_each_replica_is_called_over_connections_of_its_own() -> None:
    """Every second new connection of the API server goes to a replica that does not answer; the open one answers."""

    class Lost(Server):
        def create(self, where: str, body: Any, **query: str) -> Any:
            if "/gpu-share-system/" in where:
                lost = len(self.tried) % 2
                self.refusals["gpu-share-system"] = DEADLINE if lost else OUTSIDE
            return super().create(where, body, **query)

    server = Lost(namespaces=[namespace("a")], deployments=RELEASE)
    found = trial(server, None)  # type: ignore[arg-type] # it only reads and tries
    assert (found.level, "refused in namespace gpu-share-system" in found.detail) == ("wrong", True)
    assert "networkpolicies -n gpu-share-system" in found.hint
    healthy = Server({"gpu-share-system": OUTSIDE}, namespaces=[namespace("a")], deployments=RELEASE)
    assert asked(healthy)[0] == "ok"
    assert len(healthy.tried) == 1 + CALLS, "one replica"
    may_not = 'User "jo" cannot create resource "pods" in API group "" in the namespace "gpu-share-system"'
    tenant = Server({"gpu-share-system": may_not}, namespaces=[namespace("a")], deployments=RELEASE)
    assert asked(tenant)[0] == "ok", "who may create pods elsewhere tries there"
