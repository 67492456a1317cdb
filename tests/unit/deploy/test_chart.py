"""The chart with other values than the default ones, which test_manifests has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from enforcer.mps import host as mps_host
from gpushare import contract
from gpushare_cli.main import build_parser
from tests.support import helm

pytestmark = pytest.mark.controlplane  # they need helm, which make integration brings
Object = dict[str, Any]
VALUES: Final[Object] = yaml.safe_load((helm.CHART / "values.yaml").read_text())
SCHEMA: Final[Object] = json.loads((helm.CHART / "values.schema.json").read_text())
PLAIN: Final = (
    "--set=namespace.create=true,monitoring.serviceMonitor.enabled=true,monitoring.podMonitor.enabled=true",
    "--set=monitoring.prometheusRule.enabled=true,monitoring.dashboard.enabled=true",
)
SIMULATED: Final = (*PLAIN, "--set=simulate.enabled=true")
WORLDS: Final = (("--set=webhook.clientCA=clients",), PLAIN, SIMULATED, ("--set=mps.sharedMemory=private",), ())
SAMPLES: Final = {
    "enforcer.affinity": {"nodeAffinity": {}},
    "enforcer.foreignClaims": "report",
    "enforcer.healthTaint": "NoExecute",
    "enforcer.limitBackend": "watch-only",
    "enforcer.memoryReserve": "6%",
    "enforcer.mode": "time-slicing",
    "enforcer.limitVerificationSeconds": 7,
    "certs.affinity": {"nodeAffinity": {}},
    "certs.leafDays": 20,
    "image.digest": f"sha256:{'0' * 64}",
    "imagePullSecrets": [{"name": "x"}],
    "monitoring.podMonitor.interval": "7s",
    "monitoring.prometheusRule.runbook": "https://example.org/3am",
    "monitoring.serviceMonitor.interval": "7s",
    "simulate.driver": "615.71.09",
    "simulate.mig": ["1g.4gb"],
    "placement.acrossNodes": "spread",
    "placement.withinNode": "spread",
    "mps.sharedMemory": "private",
    "mps.sharedMemorySize": "2Gi",
    "simulate.image.digest": f"sha256:{'0' * 64}",
    "webhook.affinity": {"nodeAffinity": {}},
    "webhook.defaultCompute": "memory",
    "webhook.maxMemory": "80Gi",
    "webhook.minAvailable": 0,
    "webhook.rollingUpdate.maxSurge": 2,
    "webhook.rollingUpdate.maxUnavailable": 1,
    "webhook.rootTenants": "refuse",
    "webhook.schedulerNames": ["default-scheduler", "packing"],
    "webhook.severalGpus": "allow",
    "webhook.spreadOver": ["zone"],
}
"""A value that differs from the default, where one cannot be made up."""


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    helm.need()


def leaves(values: Object, where: str = "") -> Iterator[tuple[str, Any]]:
    """(path, default) of every value; an empty map or a list is one."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "nodeSelector":
            yield from leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def other(where: str, default: Any) -> Any:
    """Another value that the schema allows."""
    if where in SAMPLES:
        return SAMPLES[where]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1
    return other_text(where, default)


def other_text(where: str, default: Any) -> Any:
    for tail, value in {
        "requests.memory": "9Mi",
        "Policy": "Always",
        "Level": "debug",
        "cpu": "9m",
        "emory": "9Gi",
        "counted": "kill",
    }.items():
        if where.endswith(tail):
            return value
    if isinstance(default, list):
        return [{"key": "other", "operator": "Exists"}]
    if isinstance(default, dict):
        return {"other": "label"}
    return f"{default.rstrip('/')}/other" if default.startswith("/") else "other"


def setting(where: str, value: Any) -> str:
    return f"--set-json={where}={json.dumps(value)}"


def of(options: tuple[str, ...], kind: str) -> list[Object]:
    return [each for each in helm.objects(*options) if each["kind"] == kind]


def pods(*options: str) -> list[tuple[str, Object]]:
    found = []
    for item in helm.objects(*options):
        spec = item.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            found.append((f"{item['kind']}/{item['metadata']['name']}", spec["template"]["spec"]))
    return found


def enforcer(*options: str) -> Object:
    named = {each["metadata"]["name"]: each for each in of(options, "DaemonSet")}
    found: Object = named["gpu-share-enforcer"]["spec"]["template"]["spec"]
    return found


def deployment(options: tuple[str, ...], name: str = "gpu-share-webhook") -> Object:
    return next(each for each in of(options, "Deployment") if each["metadata"]["name"] == name)


def environment(*options: str) -> dict[str, str]:
    container = deployment(options)["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in container["env"]}


def test_the_shipped_manifests_are_what_the_chart_renders_every_time() -> None:
    assert helm.INSTALL.read_text() == helm.manifests(), "run make manifests"
    assert helm.template() == helm.template()


@pytest.mark.parametrize("options", [PLAIN, SIMULATED, ("--set=certs.certManager.enabled=true",)])
def test_nothing_rendered_depends_on_when_or_where(options: tuple[str, ...]) -> None:
    assert "caBundle:" not in helm.template(*options)
    sources = "".join(each.read_text() for each in (helm.CHART / "templates").iterdir())
    assert not re.findall(r"lookup|genCA|genSelfSigned|genSigned|randAlpha|\bnow\b.*date|uuidv4", sources)


@pytest.mark.parametrize(("where", "default"), sorted(leaves(VALUES), key=str))
def test_every_value_changes_something(where: str, default: Any) -> None:
    changed = setting(where, other(where, default))
    assert any(helm.objects(*options) != helm.objects(*options, changed) for options in WORLDS)


def test_every_value_is_described_and_known_to_the_schema() -> None:
    lines = (helm.CHART / "values.yaml").read_text().splitlines()
    described = {lines[number + 1].strip().partition(":")[0] for number in comments(lines)}
    for where, _ in leaves(VALUES):
        at: Object = SCHEMA
        for key in where.split("."):
            at = at["properties"][key] if key in at.get("properties", {}) else SCHEMA["$defs"]["amounts"]
        assert described & set(where.split(".")), f"{where} has no comment"


def comments(lines: list[str]) -> Iterator[int]:
    """Last line of each ``# --`` comment."""
    inside = False
    for number, line in enumerate(lines):
        inside = line.strip().startswith("# --") or (inside and line.strip().startswith("#"))
        if inside and not lines[number + 1].strip().startswith("#"):
            yield number


def test_labels_and_annotations_of_our_pods_are_on_each_and_chosen_by_no_selector() -> None:
    options = ("--set=podLabels.team=gpu,podAnnotations.note=x", *SIMULATED)
    templates = [
        spec["template"]["metadata"]
        for item in helm.objects(*options)
        if "template" in (spec := item.get("spec", {})) and item["kind"] != "ResourceClaimTemplate"
    ]
    assert len(templates) > 5
    assert {(each["labels"]["team"], each["annotations"]["note"]) for each in templates} == {("gpu", "x")}
    assert "team" not in json.dumps([item["spec"].get("selector") for item in of(options, "Deployment")])


def test_too_old_a_cluster_and_kube_system_are_refused() -> None:
    with pytest.raises(helm.HelmError, match=r"incompatible with Kubernetes v1\.35"):
        helm.template(kubernetes="1.35.4")
    with pytest.raises(helm.HelmError, match="namespace of its own"):
        helm.template("--namespace=kube-system")


@pytest.mark.parametrize(
    ("set_", "image"),
    [
        ("", "gpu-share:0.1.0"),
        ("image.registry=a.example/b", "a.example/b/gpu-share:0.1.0"),
        ("image.registry=a.example,global.imageRegistry=m.example/c", "m.example/c/gpu-share:0.1.0"),
        ("image.repository=x/y,image.tag=v2", "x/y:v2"),
        (f"image.tag=v2,image.digest=sha256:{'a' * 64}", f"gpu-share@sha256:{'a' * 64}"),
    ],
)
def test_every_container_and_the_sidecar_run_the_image_asked_for(set_: str, image: str) -> None:
    options = (f"--set={set_}",) if set_ else ()
    assert {c["image"] for _, spec in pods(*options) for c in spec["containers"]} == {image}
    assert environment(*options)["GPU_SHARE_IMAGE"] == image


def test_no_role_has_wildcards_the_hooks_included() -> None:
    roles = of(PLAIN, "ClusterRole") + of(PLAIN, "Role")
    assert {"gpu-share-uninstall-before", "gpu-share-uninstall-after"} <= {r["metadata"]["name"] for r in roles}
    for rule in (rule for role in roles for rule in role["rules"]):
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]


def test_all_but_the_enforcer_would_pass_pod_security_restricted() -> None:
    for name, spec in (each for each in pods(*SIMULATED) if not each[0].startswith("DaemonSet")):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for context in (each["securityContext"] for each in spec["containers"]):
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True


def test_with_simulated_gpus_nothing_is_privileged_and_the_enforcer_may_only_end_processes_and_look_into_them() -> None:
    spec = enforcer(*SIMULATED)
    contexts = {c["name"]: c["securityContext"] for c in spec["initContainers"] + spec["containers"]}
    assert not any(each.get("privileged") for each in contexts.values())
    assert contexts["enforcer"]["capabilities"] == {"drop": ["ALL"], "add": ["KILL", "SYS_PTRACE"]}
    assert contexts["simulator"]["capabilities"] == {"drop": ["ALL"]}
    assert enforcer(*PLAIN)["containers"][0]["securityContext"]["privileged"] is True


@pytest.mark.parametrize("options", [PLAIN, SIMULATED])
def test_the_enforcer_finds_driver_kubelet_and_state_where_they_are_mounted(options: tuple[str, ...]) -> None:
    spec = enforcer(*options, "--set=kubeletRoot=/data/kubelet,cdiRoot=/etc/cdi,stateDir=/data/state,runDir=/data/run")
    container = spec["containers"][0]
    arguments = dict(each.removeprefix("--").split("=", 1) for each in container["args"] if "=" in each)
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert (mounts["/data/state"], mounts["/data/run"], mounts["/etc/cdi"]) == ("state", "run", "cdi")
    assert {"/data/kubelet/plugins", "/data/kubelet/plugins_registry", "/data/kubelet/pod-resources"} <= mounts.keys()
    driver = "state" if options is SIMULATED else "driver"
    assert driver == mounts[max((at for at in mounts if arguments["driver-root"].startswith(at)), key=len)]
    hosts = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    assert all(hosts[mounts[at]] == at for at in ("/data/state", "/data/run", "/etc/cdi", "/data/kubelet/plugins"))
    assert hosts.get("driver") == ("/" if options is PLAIN else None)


def test_what_others_describe_by_cdi_is_seen_and_not_written() -> None:
    def mounts(*options: str) -> list[tuple[str, bool]]:
        found = enforcer(*options)["containers"][0]["volumeMounts"]
        return [(each["name"], each.get("readOnly", False)) for each in found if each["mountPath"] == "/etc/cdi"]

    assert mounts() == [("cdi-of-others", True)]
    assert mounts("--set=cdiRoot=/etc/cdi") == [("cdi", False)]


def test_the_simulator_lays_the_driver_where_the_enforcer_looks_and_programs_may_run() -> None:
    spec = enforcer(*SIMULATED)
    simulator, container = spec["initContainers"][0], spec["containers"][0]
    root = next(each for each in simulator["args"] if each.startswith("--root=")).removeprefix("--root=")
    assert f"--driver-root={root}/driver" in container["args"]
    assert simulator["restartPolicy"] == "Always"
    volumes = {each["name"]: each for each in spec["volumes"]}
    mounts = {each["mountPath"] for each in simulator["volumeMounts"]}
    assert mounts == {root, VALUES["cdiRoot"], "/tmp"}, "it sees no audit log"
    assert f"--cdi-root={VALUES['cdiRoot']}" in simulator["args"], "else there is no GPU without MPS"
    assert volumes["simulator"]["hostPath"]["path"] == root
    assert not root.startswith("/run"), "/run is often mounted noexec"


def test_high_availability_keeps_replicas_apart_and_can_still_be_updated_on_three_nodes() -> None:
    options = ("--values", str(helm.CHART / "values-ha.yaml"))
    spec = deployment(options)["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    rule = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
    term = rule["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert term["labelSelector"] == spec["selector"]
    assert of(options, "PodDisruptionBudget")[0]["spec"]["minAvailable"] == 2


def test_one_replica_has_no_budget_that_would_stop_a_drain() -> None:
    assert of(("--set=webhook.replicas=1",), "PodDisruptionBudget") == []


def test_cert_manager_takes_over_whole() -> None:
    options = ("--set=certs.certManager.enabled=true",)
    assert not any("gpu-share-certs" in each["metadata"]["name"] for each in helm.objects(*options))
    leaf = next(each for each in of(options, "Certificate") if not each["spec"].get("isCA"))["spec"]
    configuration = of(options, "MutatingWebhookConfiguration")[0]
    service = configuration["webhooks"][0]["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in leaf["dnsNames"]
    assert (
        configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == f"{helm.SYSTEM}/gpu-share-webhook"
    )
    volume = deployment(options)["spec"]["template"]["spec"]["volumes"][0]
    assert volume["secret"]["secretName"] == leaf["secretName"]


def test_another_namespace_is_meant_everywhere() -> None:
    text = helm.template("--namespace=gpus")
    assert helm.SYSTEM not in text
    assert "system:serviceaccount:gpus:gpu-share-enforcer" in text


def test_the_uninstall_hooks_run_in_order_and_leave_no_identity_behind() -> None:
    hooks = [each for each in helm.objects() if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    for each in hooks:
        notes = each["metadata"]["annotations"]
        assert ("hook-failed" in notes["helm.sh/hook-delete-policy"]) == (each["kind"] != "Job"), "a job's log stays"
        assert (int(notes["helm.sh/hook-weight"]) < 0) == (each["kind"] != "Job")
    refused = "--set=uninstall.waitForClaims=false"
    arguments = [spec["containers"][0]["args"] for name, spec in pods(refused) if "uninstall-before" in name]
    assert "--ignore-claims" in arguments[0]


def test_the_enforcer_goes_to_nodes_that_opted_in_unless_set_otherwise() -> None:
    assert enforcer()["nodeSelector"] == {contract.NODE_LABEL: "true"}
    assert "nodeSelector" not in enforcer('--set-json=enforcer.nodeSelector={"gpu-share.io/enabled":null}')


def test_nodes_are_cleaned_where_enforcers_were_with_their_folders_and_no_right_but_roots_files() -> None:
    values = "--set=kubeletRoot=/data/kubelet,cdiRoot=/etc/cdi,stateDir=/data/state,runDir=/data/run"
    spec = dict(pods(values))["DaemonSet/gpu-share-clean"]
    cleaner, done = spec["initContainers"][0], spec["containers"][0]
    enforcers = enforcer(values)
    assert (spec["nodeSelector"], spec["tolerations"]) == (enforcers["nodeSelector"], enforcers["tolerations"])
    read = build_parser("uninstall").parse_args(cleaner["args"])
    assert (read.state, read.run_folder, read.kubelet_root, read.cdi_root) == tuple(
        map(Path, ("/data/state", "/data/run", "/data/kubelet", "/etc/cdi"))
    )
    assert all(each["securityContext"]["capabilities"] == {"drop": ["ALL"]} for each in (cleaner, done))
    assert "volumeMounts" not in done
    assert not spec["automountServiceAccountToken"]


def test_an_enforcer_is_ready_when_the_kubelet_knows_it_and_its_gpus_are_on_offer() -> None:
    container = enforcer()["containers"][0]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert f"--metrics=0.0.0.0:{container['ports'][0]['containerPort']}" in container["args"]


def test_tenants_change_quotas_of_what_runs_only_where_an_operator_says_so() -> None:
    def rights(*options: str) -> bool:
        (policy,) = [
            each for each in of(options, "ValidatingAdmissionPolicy") if each["metadata"]["name"] == "gpu-share-resize"
        ]
        return contract.RESIZE_RIGHT in str(policy["spec"]["validations"])

    assert (rights(), rights("--set=tenantResize=true")) == (True, False)


def test_the_policy_that_warns_knows_the_smallest_and_largest_share_of_the_cluster() -> None:
    options = ("--set=webhook.minMemory=1Gi", "--set=webhook.maxMemory=77Gi")
    policies = {each["metadata"]["name"]: str(each) for each in of(options, "ValidatingAdmissionPolicy")}
    assert all(f'"{amount}"' in policies["gpu-share-warnings"] for amount in ("1Gi", "77Gi"))


@pytest.mark.parametrize("options", [PLAIN, SIMULATED, (*SIMULATED, "--set=simulate.privileged=true")])
def test_a_shared_memory_of_mps_is_one_and_the_same_for_daemons_enforcer_and_clients(options: tuple[str, ...]) -> None:
    specs = dict(pods(*options))
    host, enforcers = (specs[f"DaemonSet/gpu-share-{name}"] for name in ("mps", "enforcer"))
    for spec in (host, enforcers):
        (volume,) = [each for each in spec["volumes"] if each["name"] == "shm"]
        assert volume["hostPath"] == {"path": "/run/gpu-share/shm", "type": "DirectoryOrCreate"}
        assert spec["containers"][0]["securityContext"].get("privileged", False) is (options is not SIMULATED)
    read = mps_host._parser().parse_args(host["containers"][0]["args"][1:])
    assert (read.shared_memory, read.run) == ("50%", Path("/run/gpu-share"))
    assert "--mps-shared-memory=auto" in enforcers["containers"][0]["args"]
    (run,) = [each for each in host["containers"][0]["volumeMounts"] if each["name"] == "run"]
    assert run.get("mountPropagation") == (None if options is SIMULATED else "Bidirectional"), "only the privileged may"


def test_the_shared_memory_of_mps_has_the_size_it_is_given() -> None:
    host = dict(pods(*PLAIN, "--set=mps.sharedMemorySize=2Gi"))["DaemonSet/gpu-share-mps"]
    assert mps_host._parser().parse_args(host["containers"][0]["args"][1:]).shared_memory == "2048m"


def test_where_it_is_private_nothing_of_the_sort_is_mounted() -> None:
    assert re.findall("Bidirectional|shared-memory.*", helm.template(*WORLDS[3])) == ["shared-memory=private"]
