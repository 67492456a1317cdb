"""The shipped manifests say what the contract says, and give nobody more than it needs."""

import re
from pathlib import Path
from typing import Any

import pytest

from certs import main as certs
from enforcer import flags as enforcer
from gpushare import contract
from tests.integration.controlplane import manifests
from webhook import flags, informers
from webhook.mutation import sidecar_spec
from webhook.mutation.settings import Settings

OBJECTS = manifests.load()
SYSTEM = "gpu-share-system"
KEYS = re.compile(r"gpu-share\.io/[a-z-]+")
EXPRESSIONS = "validatingadmissionpolic"


def of(kind: str, name: str = "") -> list[dict[str, Any]]:
    return [o for o in OBJECTS if o["kind"] == kind and name in {"", o["metadata"]["name"]}]


def pods() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for item in OBJECTS:
        spec = item.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template:
            found.append((f"{item['kind']}/{item['metadata']['name']}", template["spec"]))
    return found


def webhook() -> dict[str, Any]:
    found: dict[str, Any] = of("MutatingWebhookConfiguration")[0]["webhooks"][0]
    return found


def test_no_two_documents_have_one_name() -> None:
    names = [manifests.where(o) for o in OBJECTS]
    assert len(names) == len(set(names))


def test_every_key_of_ours_in_the_manifests_is_one_of_the_contract() -> None:
    known = {
        contract.NAMESPACE_LABEL,
        contract.MANAGED_LABEL,
        contract.MEMORY,
        contract.COMPUTE,
        contract.GPUS,
        contract.MIG_PROFILE,
        contract.AUDIT_HEAD,
        contract.MAX_MEMORY,
        contract.MAX_MEMORY_LIMIT,
        contract.MEMORY_LIMIT,
        contract.MAX_COMPUTE,
        contract.DEFAULT_MEMORY,
        contract.DEFAULT_COMPUTE,
        contract.OWN_CLAIMS,
        contract.COUNT_AMOUNTS,
        contract.ENFORCER_REPORTER,
        informers.CONTROLLER,
        "gpu-share.io/metrics",
    }
    text = manifests.FILE.read_text()
    assert set(KEYS.findall(text)) == known


def test_the_classes_select_what_the_enforcer_publishes() -> None:
    for name, kind in (
        (contract.DEVICE_CLASS, contract.KIND_GPU),
        (contract.MIG_DEVICE_CLASS, contract.KIND_MIG),
        (contract.STATUS_DEVICE_CLASS, contract.KIND_STATUS),
    ):
        expression = of("DeviceClass", name)[0]["spec"]["selectors"][0]["cel"]["expression"]
        assert f'device.driver == "{contract.DRIVER}"' in expression
        assert f'device.attributes["{contract.DRIVER}"].kind == "{kind}"' in expression


def test_the_last_word_holds_the_contracts_names_and_values() -> None:
    text = manifests.FILE.read_text()
    for name in (
        contract.CUDA_VISIBLE_DEVICES,
        contract.NVIDIA_VISIBLE_DEVICES,
        contract.MPS_PIPE_DIRECTORY,
        contract.MPS_LOG_DIRECTORY,
        contract.MPS_MEMORY_LIMIT,
        contract.MEMORY_MIB,
        contract.PIPE_PATH,
        contract.LOG_PATH,
        contract.NO_NVIDIA_DEVICE,
        contract.MIRROR,
    ):
        assert f'"{name}"' in text
    assert f'r.name == "{contract.CLAIM}"' in text
    assert f"^{contract.TEMPLATE_PREFIX}[0-9a-f]{{16}}$" in text


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("gpu-share.io/memory", True),
        ("memory.gpu-share.io/main", True),
        ("a.b.gpu-share.io/x", True),
        ("GPU-Share.io/memory", True),
        ("gpu-share.io", True),
        ("xgpu-share.io/memory", False),
        ("gpu-share.io.example/memory", False),
        ("gpu-shareXio/memory", False),
        ("example.org/gpu-share.io", False),
        ("memory", False),
    ],
)
def test_policies_and_webhook_mean_the_same_by_ours(key: str, *, ours: bool) -> None:
    text = manifests.FILE.read_text()
    patterns = set(re.findall(r'key\.lowerAscii\(\)\.matches\("([^"]+)"\)', text))
    assert len(patterns) == 1
    assert contract.is_ours(key) == ours
    assert bool(re.search(patterns.pop(), key.lower())) == ours


def test_the_webhook_is_called_for_pods_of_opted_in_namespaces_and_for_nothing_else() -> None:
    found = webhook()
    assert found["failurePolicy"] == "Fail"
    assert found["timeoutSeconds"] == 3
    assert found["matchPolicy"] == "Equivalent"
    assert found["sideEffects"] == "NoneOnDryRun"
    assert found["reinvocationPolicy"] == "IfNeeded"
    assert found["admissionReviewVersions"] == ["v1"]
    assert found["namespaceSelector"]["matchLabels"] == {contract.NAMESPACE_LABEL: "true"}
    assert found["namespaceSelector"]["matchExpressions"][0]["values"] == ["kube-system", SYSTEM]
    rules = [(r["resources"], r["operations"]) for r in found["rules"]]
    assert rules == [(["pods"], ["CREATE"]), (["pods/ephemeralcontainers"], ["UPDATE"])]
    assert "objectSelector" not in found, "tenants could dodge it"


def test_the_webhooks_address_is_the_one_the_certificate_is_made_for() -> None:
    service = webhook()["clientConfig"]["service"]
    assert of("Service", service["name"])[0]["metadata"]["namespace"] == service["namespace"]
    host = f"{service['name']}.{service['namespace']}.svc"
    for name, spec in pods():
        arguments = spec["containers"][0].get("args", [])
        if arguments[0] == "certs":
            parsed = certs.parse(arguments[1:])
            assert f"DNS:{host}" in parsed.wanted.names, name
            assert parsed.webhook_configuration == [of("MutatingWebhookConfiguration")[0]["metadata"]["name"]]


def test_certs_may_touch_exactly_the_secrets_and_configurations_it_is_notified_to() -> None:
    arguments = next(s for n, s in pods() if n == "Deployment/gpu-share-certs")["containers"][0]["args"]
    secret = certs.parse(arguments[1:]).secret.partition("/")[2]
    rules = of("Role", "gpu-share-certs")[0]["rules"]
    assert rules[0]["verbs"] == ["create"]
    assert rules[1] == {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [secret, secret + certs.AUTHORITY_SUFFIX],
        "verbs": ["get", "update"],
    }
    assert of("ClusterRole", "gpu-share-certs")[0]["rules"][0]["resourceNames"] == ["gpu-share"]


def test_nothing_mounts_the_authoritys_key() -> None:
    mounted = {v["secret"]["secretName"] for _, spec in pods() for v in spec.get("volumes", []) if "secret" in v}
    assert mounted == {"gpu-share-webhook-tls"}


def test_only_certs_may_change_webhook_configurations_and_nobody_has_wildcards() -> None:
    for role in of("ClusterRole") + of("Role"):
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            writes = set(rule["verbs"]) - {"get", "list", "watch"}
            if any(r.endswith("webhookconfigurations") for r in rule["resources"]) and writes:
                assert role["metadata"]["name"] == "gpu-share-certs"
            assert "resourceclaims/binding" not in rule["resources"]


@pytest.mark.parametrize(("name", "spec"), [p for p in pods() if not p[0].startswith("DaemonSet")])
def test_all_but_the_enforcer_would_pass_pod_security_restricted(name: str, spec: dict[str, Any]) -> None:
    ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), sidecar_spec.USER)
    assert spec["securityContext"] == {"runAsNonRoot": True, **ids, "seccompProfile": {"type": "RuntimeDefault"}}, name
    assert not any(spec.get(key) for key in ("hostPID", "hostIPC", "hostNetwork"))
    assert not any("hostPath" in v for v in spec.get("volumes", []))
    for container in spec["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize(("name", "spec"), pods())
def test_every_container_is_bounded_and_cannot_write_its_image(name: str, spec: dict[str, Any]) -> None:
    assert spec["priorityClassName"].startswith("system-")
    for container in spec["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        if container["name"] != "mps":  # what ends that one ends every tenant of the node
            assert "memory" in container["resources"]["limits"]
        assert container["image"] == Settings().image


def test_the_webhook_serves_where_its_service_and_probes_look() -> None:
    container = of("Deployment", "gpu-share-webhook")[0]["spec"]["template"]["spec"]["containers"][0]
    environment = {e["name"]: e["value"] for e in container["env"]}
    read = flags.Options.read(container["args"][1:], environment)
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {"https": read.bind[1], "admin": read.admin[1]}
    assert Path(container["volumeMounts"][0]["mountPath"]) == read.certs
    assert read.settings.image == container["image"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}


@pytest.mark.parametrize(("name", "spec"), pods())
def test_no_flood_of_a_plain_http_port_restarts_a_container(name: str, spec: dict[str, Any]) -> None:
    for container in spec["containers"]:
        for probe in ("livenessProbe", "startupProbe"):
            assert "httpGet" not in container.get(probe, {}), f"{name}: {probe}"


def test_the_webhook_survives_a_drain_and_a_full_cluster() -> None:
    deployment = of("Deployment", "gpu-share-webhook")[0]["spec"]
    assert deployment["replicas"] >= 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert of("PodDisruptionBudget")[0]["spec"]["selector"] == deployment["selector"]
    spec = deployment["template"]["spec"]
    wait = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 0 < wait < spec["terminationGracePeriodSeconds"]


def test_the_enforcer_runs_once_on_each_node_that_shares() -> None:
    spec = of("DaemonSet")[0]["spec"]
    assert spec["template"]["spec"]["nodeSelector"] == {contract.NODE_LABEL: "true"}
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert spec["template"]["spec"]["hostPID"] is True


def test_the_enforcer_keeps_its_state_where_the_node_does(monkeypatch: pytest.MonkeyPatch) -> None:
    container = of("DaemonSet")[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][0] == "enforcer"
    assert container["env"][0]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    monkeypatch.setenv(container["env"][0]["name"], "node-a")
    read = enforcer.parse(container["args"][1:])
    mounted = {m["mountPath"] for m in container["volumeMounts"]}
    assert read.node == "node-a"
    assert {str(read.state), str(read.run)} <= mounted


def test_every_policy_is_bound_and_denies_except_the_one_that_warns() -> None:
    bound = {b["spec"]["policyName"]: b["spec"]["validationActions"] for b in of("ValidatingAdmissionPolicyBinding")}
    failing = {p["metadata"]["name"]: p["spec"]["failurePolicy"] for p in of("ValidatingAdmissionPolicy")}
    assert failing.pop("gpu-share-warnings") == "Ignore"
    assert bound.pop("gpu-share-warnings") == ["Warn"]
    assert bound == {name: ["Deny"] for name in failing}
    assert set(failing.values()) == {"Fail"}


def test_no_policy_stops_a_deletion_but_of_templates_and_slices() -> None:
    deleting = {
        p["metadata"]["name"]
        for p in of("ValidatingAdmissionPolicy")
        if any("DELETE" in r["operations"] for r in p["spec"]["matchConstraints"]["resourceRules"])
    }
    assert deleting == {"gpu-share-templates", "gpu-share-slices", "gpu-share-webhook-templates"}


def test_the_enforcers_name_in_the_policy_is_that_of_its_account() -> None:
    condition = of("ValidatingAdmissionPolicy", "gpu-share-slices")[0]["spec"]["matchConditions"][0]["expression"]
    account = of("ServiceAccount", "gpu-share-enforcer")[0]["metadata"]
    assert f"system:serviceaccount:{account['namespace']}:{account['name']}" in condition


def test_the_image_runs_as_the_sidecars_user() -> None:
    dockerfile = (manifests.FILE.parents[2] / "Dockerfile").read_text()
    assert f"USER {sidecar_spec.USER}" in dockerfile
    assert 'ENTRYPOINT ["gpu-share"]' in dockerfile
