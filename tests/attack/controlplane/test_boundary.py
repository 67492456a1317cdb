"""Opt-in and maximum hold on every way to a GPU; tenants act by impersonation, on a real API server and scheduler."""

import copy
from typing import Any

import pytest

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, JSON_PATCH, RESOURCE_V1, path
from gpushare.namespace_policy import NamespacePolicy
from tests.attack.controlplane.people import (
    CLAIMS_CONTROLLER,
    MAXIMUM,
    People,
    claim,
    claims,
    pod,
    pods,
    refusal,
    request,
    template,
    templates,
)  # fmt: skip
from tests.integration.controlplane.objects import Object
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

pytestmark = pytest.mark.controlplane
IMPLICIT = "deviceclass.resource.kubernetes.io/"
CLASSES = ("gpu-share.io", "mig.gpu-share.io", "status.gpu-share.io")
NOT_OPTED_IN = "has not opted in"


@pytest.mark.parametrize("class_name", CLASSES)
@pytest.mark.parametrize("choice", [False, True])
@pytest.mark.parametrize("user", ["carol", "otto"])
def test_who_has_not_opted_in_writes_no_claim_of_ours(
    people: People, class_name: str, user: str, *, choice: bool
) -> None:
    carol, other = people.acting(user), {"deviceClassName": "gpu.example.com"}
    asked = [{"deviceClassName": class_name}] if not choice else [other, {"deviceClassName": class_name}]
    for where, body in (
        (claims(people.outside), claim("hers", *asked, choice=choice)),
        (templates(people.outside), template("hers", *asked, choice=choice)),
    ):
        assert NOT_OPTED_IN in refusal(carol, where, body)
    assert refusal(carol, claims(people.outside), claim("others", other), dryRun="All") == ""


@pytest.mark.parametrize("class_name", CLASSES)
@pytest.mark.parametrize("section", ["containers", "initContainers"])
def test_nobody_takes_a_whole_gpu_as_an_extended_resource(people: People, class_name: str, section: str) -> None:
    amount = {IMPLICIT + class_name: "1"}
    everybody = (("carol", people.outside), ("otto", people.outside), ("alice", people.inside), ("olga", people.inside))
    for user, namespace in everybody:
        asking = pod("implicit")
        resources = {"resources": {"limits": amount, "requests": amount}}
        asking["spec"].setdefault(section, [{"name": "first", "image": "example.invalid/app:1"}])[0] |= resources
        assert "takes a whole GPU" in refusal(people.acting(user), pods(namespace), asking)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (request(), "memory is missing"),
        (request("3Gi", "25"), "max-memory"),
        (request("2049Mi", "25"), "max-memory"),
        (request("2Gi"), "max-compute"),
        (request("2Gi", "51"), "max-compute"),
        (request("2Gi", "0"), "max-compute"),
        (request("1Gi", "25", allocationMode="All"), "allocationMode"),
        (request("2Gi", "50"), ""),
    ],
)
@pytest.mark.parametrize("choice", [False, True])
@pytest.mark.parametrize("user", ["alice", "olga"])
def test_claims_by_hand_stay_within_the_maximum(
    people: People, asked: Object, why: str, user: str, *, choice: bool
) -> None:
    acting, enough = people.acting(user), request("1Gi", "25")
    both = [enough, asked] if choice else [asked]
    for where, body in (
        (claims(people.inside), claim("c", *both, choice=choice)),
        (templates(people.inside), template("t", *both, choice=choice)),
    ):
        found = refusal(acting, where, body, dryRun="All")
        assert (why in found) if why else not found


def test_only_operators_open_a_namespace_for_any_claim(people: People) -> None:
    bed, anything = people.bed, {"gpu-share.io/own-claims": "any"}
    where = path(CORE_V1, "namespaces", people.inside)
    people.grant("owner", people.inside, {"kind": "ClusterRole", "name": "admin"})
    for user in ("alice", "owner", "olga"):
        with pytest.raises(ClusterError):
            people.acting(user).patch(where, {"metadata": {"annotations": anything}})
    open_one = bed.namespace("open", annotations=MAXIMUM | anything)
    people.grant("alice", open_one, {"kind": "ClusterRole", "name": "edit"})
    alice = people.acting("alice")
    assert refusal(alice, claims(open_one), claim("whole", request()), dryRun="All") == ""
    implicit = pod("implicit", resources={"limits": {f"{IMPLICIT}gpu-share.io": "1"}})
    assert refusal(alice, pods(open_one), implicit, dryRun="All") == ""


def another_class(people: People) -> str:
    """A DeviceClass that the policies do not know, by which an administrator hands out our devices."""
    where = path(RESOURCE_V1, "deviceclasses")
    selector = {
        "cel": {"expression": 'device.driver == "gpu-share.io" && device.attributes["gpu-share.io"].kind == "gpu"'}
    }
    body = {"metadata": {"name": "sneaky.example.com"}, "spec": {"selectors": [selector]}}
    if people.bed.find(f"{where}/sneaky.example.com") is None:
        people.bed.cluster.create(where, body)
    return "sneaky.example.com"


def test_the_allocation_itself_needs_the_opt_in_whatever_class_it_goes_by(people: People) -> None:
    bed, carol = people.bed, people.acting("carol")
    asked = request("1Gi", "10") | {"deviceClassName": another_class(people)}
    assert refusal(carol, claims(people.outside), claim("sneaky", asked)) == ""
    assert refusal(carol, pods(people.outside), pod("sneaks", "sneaky")) == ""

    def scheduling_message() -> str:
        found = bed.pod(people.outside, "sneaks")["status"].get("conditions") or []
        return " ".join(str(each.get("message")) for each in found if each["type"] == "PodScheduled")

    bed.until("the scheduler's message reaches the pod", lambda: NOT_OPTED_IN in scheduling_message())
    stored = bed.cluster.get(claims(people.outside, "sneaky"))
    assert "allocation" not in stored.get("status", {})
    bed.delete_pod(people.outside, "sneaks")
    carol.delete(claims(people.outside, "sneaky"))
    bed.until("the claim goes", lambda: bed.find(claims(people.outside, "sneaky")) is None)


def test_a_second_pod_does_not_join_a_claim(people: People) -> None:
    bed, alice = people.bed, people.acting("alice")
    assert refusal(alice, claims(people.inside), claim("single", request("1Gi", "10"))) == ""
    assert refusal(alice, pods(people.inside), pod("first", "single")) == ""
    bed.wait_bound(people.inside, "first")
    for user in ("alice", "olga"):
        with pytest.raises(ClusterError, match="stays while the claim is allocated"):
            people.acting(user).patch(claims(people.inside, "single"), {"metadata": {"finalizers": []}})
    assert refusal(alice, pods(people.inside), pod("second", "single")) == ""

    def stopped() -> bool:
        found = bed.pod(people.inside, "second")["status"].get("conditions") or []
        return any("is in use by pod first" in str(each.get("message")) for each in found)

    bed.until("the second pod has an Event", stopped)
    bed.delete_pod(people.inside, "first")
    bed.wait_bound(people.inside, "second")
    bed.delete_pod(people.inside, "second")
    alice.delete(claims(people.inside, "single"))


def test_after_an_opt_out_pods_claims_and_namespace_go_as_ever(people: People) -> None:
    bed = people.bed
    namespace = bed.namespace("leaving")
    bed.create(
        namespace, pod("tenant") | {"metadata": {"name": "tenant", "annotations": {"gpu-share.io/memory": "1Gi"}}}
    )
    bed.wait_bound(namespace, "tenant")
    bed.cluster.create(claims(namespace), claim("own", request("1Gi", "10")))
    bed.create(namespace, pod("owner", "own"))
    bed.wait_bound(namespace, "owner")
    where = path(CORE_V1, "namespaces", namespace)
    bed.cluster.patch(where, {"metadata": {"labels": {"gpu-share.io/enabled": None}}})
    for name in ("tenant", "owner"):
        status = {"status": {"conditions": [{"type": "example.org/seen", "status": "True"}]}}
        bed.cluster.patch(f"{pods(namespace, name)}/status", status)
        bed.delete_pod(namespace, name)
    bed.cluster.delete(claims(namespace, "own"))
    bed.until("all claims are gone", lambda: bed.list("resourceclaims", namespace) == [])
    bed.cluster.delete(where)
    bed.until("the namespace is gone", lambda: bed.find(where) is None, 60)


@pytest.mark.parametrize(("value", "user"), [("true", "carol"), ("false", "carol"), ("", "carol"), ("true", "otto")])
def test_our_label_is_for_namespaces_that_opted_in(people: People, value: str, user: str) -> None:
    carol, label = people.acting(user), {"gpu-share.io/managed": value}
    labelled = pod("labelled")
    labelled["metadata"]["labels"] = label
    assert NOT_OPTED_IN in refusal(carol, pods(people.outside), labelled)
    plain = f"plain-{value or 'empty'}-{user}"
    carol.create(pods(people.outside), pod(plain))
    with pytest.raises(ClusterError, match=NOT_OPTED_IN):
        carol.patch(pods(people.outside, plain), {"metadata": {"labels": label}})
    carol.patch(pods(people.outside, plain), {"metadata": {"labels": {"other": "label"}}})
    carol.delete(pods(people.outside, plain))


def forged(memory: str, **more: Any) -> Object:
    """A share by hand, as gpu-share inject writes it offline, with a claim beside it that nobody uses."""
    asked = {
        "metadata": {"name": "forged", "annotations": {"gpu-share.io/memory": memory, "gpu-share.io/compute": "10"}},
        "spec": {"containers": [{"name": "main", "image": "example.invalid/app:1"}], **more},
    }
    found: Object = copy.deepcopy(dict(mutate_pod(asked, policy=NamespacePolicy(), settings=Settings()).pod))
    found["spec"]["resourceClaims"].append({"name": "decoy", "resourceClaimName": "honest"})
    return found


def test_a_decoy_gives_nobody_more_than_the_maximum(people: People) -> None:
    """With the right to create pods alone, beside a claim of the namespace that a neighbour wrote."""
    bed, bob = people.bed, people.acting("bob")
    people.acting("alice").create(claims(people.inside), claim("honest", request("1Gi", "10")))
    assert "max-memory" in refusal(bob, pods(people.inside), forged("14Gi"))
    small = forged("1Gi")
    small["metadata"]["name"] = "small"
    assert refusal(bob, pods(people.inside), small) == ""
    big = [each for each in bed.list("resourceclaimtemplates", people.inside) if "14336Mi" in str(each)]
    assert big == []
    bed.delete_pod(people.inside, "small")


def test_where_admission_was_passed_the_controller_refuses_and_says_so(people: People) -> None:
    """The namespace's maximum was lowered, or another way past the webhook was found: no template, an Event."""
    bed = people.bed
    namespace = bed.namespace("lowered", annotations={"gpu-share.io/max-memory": "2Gi"})
    hooks = path("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "gpu-share")
    before = bed.cluster.get(hooks)["webhooks"][0]["namespaceSelector"]
    but = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace]}
    where = "/webhooks/0/namespaceSelector"
    bed.cluster.patch(hooks, [{"op": "replace", "path": where, "value": {"matchExpressions": [but]}}], JSON_PATCH)
    try:
        past = forged("14Gi")
        past["spec"]["resourceClaims"].pop()
        bed.until("it is admitted unseen", lambda: refusal(bed.cluster, pods(namespace), past) == "")
    finally:
        bed.cluster.patch(hooks, [{"op": "replace", "path": where, "value": before}], JSON_PATCH)

    def has_event() -> bool:
        events = bed.cluster.list(path("/apis/events.k8s.io/v1", "events", namespace=namespace))[0]
        return any(each.get("reason") == "AboveMaximum" and "max-memory" in each["note"] for each in events)

    bed.until("the pod has an Event", has_event)
    assert bed.list("resourceclaimtemplates", namespace) == []
    bed.delete_pod(namespace, "forged")


def test_a_template_planted_before_the_opt_in_refuses_the_pod(people: People) -> None:
    bed = people.bed
    namespace = bed.namespace("planted", opted_in=False)
    asked = {
        "metadata": {"name": "victim", "annotations": {"gpu-share.io/memory": "1Gi"}},
        "spec": {"containers": [{"name": "main", "image": "example.invalid/app:1"}]},
    }
    admitted = mutate_pod(asked, policy=NamespacePolicy(), settings=Settings()).pod
    name = admitted["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    planted = template(name, {"deviceClassName": "gpu.example.com"})
    bed.cluster.create(templates(namespace), planted)
    bed.cluster.patch(
        path(CORE_V1, "namespaces", namespace), {"metadata": {"labels": {"gpu-share.io/enabled": "true"}}}
    )
    found = ""

    def refused() -> bool:
        nonlocal found
        found = refusal(bed.cluster, pods(namespace), asked, dryRun="All")
        return name in found

    bed.until("the webhook knows of both", refused)
    assert "differs from the one that gpu-share writes" in found
    bed.cluster.delete(templates(namespace, name))
    bed.until("it is admitted", lambda: refusal(bed.cluster, pods(namespace), asked, dryRun="All") == "")


# Stolen identities


@pytest.mark.parametrize(
    ("name", "labels", "class_name", "outside"),
    [
        ("foreign-driver-template", {"gpu-share.io/managed": "true"}, "gpu-share.io", False),
        ("gpu-share-0123456789abcdef", {"gpu-share.io/managed": "true"}, "gpu.nvidia.com", False),
        ("gpu-share-0123456789abcdef", {}, "gpu-share.io", False),
        ("gpu-share-0123456789abcdef", {"gpu-share.io/managed": "true"}, "gpu-share.io", True),
    ],
)
def test_the_webhooks_token_writes_templates_of_its_own_kind_alone(
    people: People, name: str, labels: dict[str, str], class_name: str, *, outside: bool
) -> None:
    body = template(name, request("1Gi", "10") | {"deviceClassName": class_name})
    body["metadata"]["labels"] = labels
    namespace = people.outside if outside else people.inside
    assert refusal(people.webhook, templates(namespace), body, dryRun="All") != ""


def test_the_webhooks_token_deletes_no_template_of_others(people: People) -> None:
    where = templates("kube-system", "foreign-driver-template")
    body = template("foreign-driver-template", {"deviceClassName": "gpu.nvidia.com"})
    people.bed.cluster.create(templates("kube-system"), body)
    with pytest.raises(ClusterError, match="gpu-share"):
        people.webhook.delete(where)
    people.bed.cluster.delete(where)


def event(namespace: str, controller: str, instance: str, kind: str = "Pod", name: str = "p") -> Object:
    about = {"apiVersion": "v1", "kind": kind, "name": name} | ({"namespace": namespace} if kind == "Pod" else {})
    return {
        "metadata": {"generateName": "forged-", "namespace": namespace}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": controller, "reportingInstance": instance, "regarding": about, "action": "Kill",
        "reason": "Killed", "type": "Warning", "note": "forged",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("controller", "instance", "kind", "name", "passes"),
    [
        ("kubelet", "node-a", "Pod", "p", False),
        ("gpu-share.io/webhook", "node-a", "Pod", "p", False),
        ("gpu-share.io/enforcer", "node-b", "Pod", "p", False),
        ("gpu-share.io/enforcer", "node-a", "Node", "node-b", False),
        ("gpu-share.io/enforcer", "node-a", "Deployment", "d", False),
        ("gpu-share.io/enforcer", "node-a", "Node", "node-a", True),
        ("gpu-share.io/enforcer", "node-a", "Pod", "p", True),
    ],
)
def test_an_enforcers_events_name_itself_and_its_node(
    people: People, controller: str, instance: str, kind: str, name: str, *, passes: bool
) -> None:
    namespace = "default" if kind == "Node" else people.outside
    where = path("/apis/events.k8s.io/v1", "events", namespace=namespace)
    found = refusal(people.enforcer, where, event(namespace, controller, instance, kind, name), dryRun="All")
    assert (found == "") is passes, found


def test_an_enforcer_lists_no_claims_and_reads_one(people: People) -> None:
    with pytest.raises(ClusterError, match="cannot list"):
        people.enforcer.get(claims(people.inside))
    with pytest.raises(ClusterError, match="not found"):
        people.enforcer.get(claims(people.inside, "none"))


def test_claims_that_controllers_make_obey_opt_in_and_amount(people: People) -> None:
    """The claims' controller makes what templates say; those were held to the maximum, a whole GPU never passes."""
    controller = people.acting(CLAIMS_CONTROLLER)
    assert NOT_OPTED_IN in refusal(controller, claims(people.outside), claim("made", request("1Gi", "10")))
    assert "memory is missing" in refusal(controller, claims(people.inside), claim("made", request()))
    assert refusal(controller, claims(people.inside), claim("made", request("4Gi", "10")), dryRun="All") == ""


@pytest.mark.parametrize(
    "rights",
    [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}, {"capabilities": {"add": ["cap_sys_rawio"]}}],
)
def test_nobody_debugs_a_pod_with_a_claim_of_its_own_by_rights_on_the_node(people: People, rights: Object) -> None:
    bed, bob = people.bed, people.acting("bob")
    name = f"debugged-{len(str(rights))}"
    bob.create(pods(people.inside), pod(name, "not-there"))
    where = f"{pods(people.inside, name)}/ephemeralcontainers"
    debugger: Object = {"name": "debugger", "image": "example.invalid/debug:1"}
    for context, passes in ((rights, False), ({}, True)):
        added = {"spec": {"ephemeralContainers": [{**debugger, "securityContext": context}]}}
        try:
            bob.patch(where, added, "application/strategic-merge-patch+json", dryRun="All")
            assert passes
        except ClusterError as error:
            assert (passes, "bypass the share" in error.message) == (False, True)
    bed.delete_pod(people.inside, name)


UNREADABLE = (
    {"gpu-share.io/max-memory": ""}, {"gpu-share.io/max-memory": "2048"}, {"gpu-share.io/max-memory": "2e9"},
    {"gpu-share.io/max-compute": ""}, {"gpu-share.io/max-compute": "5%0"}, {"gpu-share.io/max-compute": "101%"},
    {"gpu-share.io/max-compute": "0.5"},
)  # fmt: skip


@pytest.mark.parametrize("maximum", UNREADABLE, ids=str)
def test_a_maximum_that_nobody_can_read_is_not_written(people: People, maximum: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match=next(iter(maximum)).removeprefix("gpu-share.io/")):
        people.bed.namespace("unreadable", annotations=maximum)


def test_a_maximum_that_nobody_can_read_lets_nobody_claim(people: People) -> None:
    """Somebody wrote it before the policy on namespaces was there."""
    bed = people.bed
    bindings = path("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
    bound = bed.cluster.get(f"{bindings}/gpu-share-namespaces")
    bed.cluster.delete(f"{bindings}/gpu-share-namespaces")
    where, probe = path(CORE_V1, "namespaces"), {"metadata": {"name": "probe", "annotations": UNREADABLE[0]}}
    bed.until("the policy is away", lambda: refusal(bed.cluster, where, probe, dryRun="All") == "")
    made = [bed.namespace("unreadable", annotations=each) for each in UNREADABLE]
    body = {key: bound[key] for key in ("apiVersion", "kind", "spec")}
    bed.cluster.create(bindings, body | {"metadata": {"name": "gpu-share-namespaces"}})
    bed.until("the policy is back", lambda: refusal(bed.cluster, where, probe, dryRun="All") != "")
    for namespace in made:
        people.grant("alice", namespace, {"kind": "ClusterRole", "name": "edit"})
        asked = claim("big", request("9Gi", "60"))
        assert "cannot be read" in refusal(people.acting("alice"), claims(namespace), asked, dryRun="All")
