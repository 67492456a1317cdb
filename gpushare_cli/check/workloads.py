"""Questions about the processes of a release: webhook replicas, enforcers of labelled nodes, and their reports."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gpushare import contract
from gpushare.claim_messages import ENDED
from gpushare.kube_client import APPS_V1, CORE_V1, RESOURCE_V1, KubeClient, find, path
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.raw_objects import moment as time_of
from gpushare.version import installed
from gpushare_cli.check.connection import release
from gpushare_cli.check.installation import DEPLOYMENT, OURS, RESTORE, VERSION_LABEL, Installation, installation
from gpushare_cli.check.result import CheckResult, failed, ok, warning
from gpushare_cli.lookups import sharing_pods
from gpushare_cli.words import clean, counted, moment, refusal_remedy, some

MAX_REPORT: Final = 16 * 1024
"""Characters of an enforcer's report that are parsed."""
BREAKER: Final = "find the containers over quota (gpu-share top -A), then run gpu-share breaker --node NODE --reset"
AUDIT: Final = (
    "if it cannot be written, free or repair the disk; if somebody changed it, copy it away and begin a new one: "
    "docs/operators/runbook.md#begin-a-new-audit-log"
)
CORRECT: Final = "correct what the line names; the log of that node's enforcer has more"
SKEW: Final = "upgrade the enforcers: each must have the webhook's release or the one before"
NODES: Final = ("nodes", contract.NODE_LABEL)
NAMESPACES: Final = ("namespaces", contract.NAMESPACE_LABEL)
REPLICAS: Final = {"webhook": 2, "certs": 1}
"""The chart's defaults."""
LABEL: Final = (
    f"kubectl label node NAME {contract.NODE_LABEL}=true; a Node that was deleted registers again when its kubelet is "
    "restarted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerReport:
    """What an enforcer wrote into the annotation of its node's ResourceSlice; see ``contract.ENFORCER``.

    ``breaker`` is since when the circuit breaker is open, ``None`` while it is closed; ``breaker_reason`` why, empty
    where that is unknown.
    """

    version: str
    enforcing: bool = True
    breaker: str | None = None
    breaker_reason: str = ""
    audit_log: str = ""
    problems: tuple[str, ...] = ()


def webhooks(api: KubeClient) -> CheckResult:
    """Compare the ready replicas of the webhook with those that are wanted."""
    found = installation(api)
    if found.replicas is None:
        return failed("no Deployment of the webhook: no sharing pod can be created", RESTORE)
    ready = sum(map(_ready, pods(api, found, "webhook")))
    detail, hint = f"{ready} of {found.replicas} ready", _unready(api, found, "webhook")
    if not ready:
        return failed(f"{detail}: no sharing pod can be created", hint)
    return warning(detail, hint) if ready < found.replicas else ok(detail)


def rollouts(api: KubeClient) -> CheckResult:
    """Name the Deployments and DaemonSets of the release whose pods are not all of their newest pod template."""
    where = installation(api)
    kinds = ("deployments", "daemonsets")
    items = [(kind[:-1], each) for kind in kinds for each in _workloads(api, kind, where.namespace)]
    found = [(kind, text(mapping(each, "metadata"), "name"), why) for kind, each in items if (why := _rollout(each))]
    if not found:
        return ok("complete")
    detail = some([clean(f"{kind} {name}: {why}") for kind, name, why in found])
    hint = refusal_remedy(found[0][2]) or _describe(where, found[0][1].removeprefix("gpu-share-"), there=True)
    return warning(detail, hint)


def _rollout(item: Object) -> str:
    """Say what a workload's newest pod template waits for; empty where all pods have it, or wait to be deleted."""
    spec, status = mapping(item, "spec"), mapping(item, "status")
    if mapping(spec, "updateStrategy").get("type") == "OnDelete":
        return ""
    if status.get("observedGeneration", 0) < mapping(item, "metadata").get("generation", 0):
        return "kube-controller-manager has not seen its newest change"
    found = objects(status, "conditions")
    states = {f"{each.get('type')} {each.get('status')}": text(each, "message") for each in found}
    if why := states.get("ReplicaFailure True") or states.get("Progressing False"):
        return why
    wanted = spec.get("replicas", status.get("desiredNumberScheduled", 0))
    updated = status.get("updatedReplicas", status.get("updatedNumberScheduled")) or 0
    return "" if updated == wanted == status.get("replicas", updated) else f"{updated} of {wanted} pods updated"


def _workloads(api: KubeClient, kind: str, namespace: str) -> Sequence[Object]:
    return api.list(path(APPS_V1, kind, namespace=namespace), labelSelector=OURS)[0]


def certificates(api: KubeClient, now: datetime) -> CheckResult:
    """Look for what renews the certificates: a ready pod, or cert-manager. A bundle shows only the end of its CA."""
    found = installation(api)
    if found.cert_manager:
        return _by_cert_manager(api, found, now)
    here = pods(api, found, "certs")
    if any(map(_ready, here)):
        return ok("ready")
    detail = f"0 of {counted(len(here), 'pod')} of gpu-share-certs are ready"
    detail += ": without a ready pod, the webhook's certificate expires within 30 days"
    return failed(detail, _unready(api, found, "certs"))


def _by_cert_manager(api: KubeClient, found: Installation, now: datetime) -> CheckResult:
    """Read what cert-manager says about the serving certificate: it is not Ready once that has expired."""
    name, hint = f"Certificate {found.namespace}/{DEPLOYMENT}", found.certificate_log
    certificate = find(api, path("/apis/cert-manager.io/v1", "certificates", DEPLOYMENT, found.namespace))
    if certificate is None:
        return failed(f"{name} is missing: cert-manager renews nothing", RESTORE)
    status = mapping(certificate, "status")
    if not _ready(certificate):
        why = [text(each, "message") for each in objects(status, "conditions") if each.get("type") == "Ready"]
        return failed(clean(f"{name} is not Ready: {next(iter(why), 'cert-manager has not seen it yet')}"), hint)
    ends, due = (time_of(status.get(key)) for key in ("notAfter", "renewalTime"))
    if due is not None and due < now:
        until = f"; it expires on {moment(ends)}" if ends else ""
        return warning(f"{name} should have been renewed on {moment(due)}{until}", hint)
    return ok("by cert-manager" + (f", valid until {moment(ends)}" if ends else ""))


def enforcers(api: KubeClient) -> CheckResult:
    """Compare the ready enforcers with the nodes that have the label, and with those on which sharing pods run."""
    at = (text(mapping(pod, "spec"), "nodeName") for pod in running_shares(api))
    return _on_nodes(api, "enforcer", Counter(filter(None, at)))


def mps_hosts(api: KubeClient) -> CheckResult:
    """Compare the pods that MPS daemons run in with the nodes that have the label."""
    return _on_nodes(api, "mps", {})


def _on_nodes(api: KubeClient, name: str, sharing: Mapping[str, int]) -> CheckResult:
    """Compare the ready pods of a DaemonSet with nodes; ``sharing`` counts the pods that go unwatched without one."""
    found = installation(api)
    if not any(_is_of(each, name) for each in _workloads(api, "daemonsets", found.namespace)):
        return failed(f"DaemonSet gpu-share-{name} is missing: no GPU is shared and no quota is enforced", RESTORE)
    nodes = labelled(api)
    here = {mapping(pod, "spec").get("nodeName"): pod for pod in sorted(pods(api, found, name), key=_ready)}
    ready = {node for node, pod in here.items() if _ready(pod)}
    lost = [node for node in {**nodes, **sharing} if node not in ready and nodes.get(node, True)]
    if lost:
        runs = {node: counted(number, "sharing pod") for node, number in sharing.items()}
        named = some([f"{node} ({runs[node]} without enforcement)" if node in runs else node for node in lost])
        hint = _describe(found, name, there=False)
        if lost[0] in here:
            hint = _look(f"{here[lost[0]]['metadata']['name']} -n {found.namespace}")
        elif lost[0] not in nodes:
            hint = f"kubectl label --overwrite node {lost[0]} {contract.NODE_LABEL}=true"
        return failed(f"not ready on {counted(len(lost), 'node')}: {named}", hint)
    if down := [node for node in nodes if node not in ready]:
        return warning(f"none on {some(down)}: the node is not Ready", f"kubectl describe node {down[0]}")
    return ok(f"on {counted(len(nodes), 'labelled node')}") if nodes else warning("no labelled node", LABEL)


def labelled(api: KubeClient) -> dict[str, bool]:
    """Return by name whether each node is Ready, of the nodes whose label opts in."""
    return {item["metadata"]["name"]: _ready(item) for item in nodes(api)}


def nodes(api: KubeClient) -> list[Object]:
    """Return the nodes whose label opts in."""
    return [each for each in _labelled(api, *NODES) if opts(each, contract.NODE_LABEL) == "true"]


def namespaces(api: KubeClient) -> list[Object]:
    """Return the namespaces whose label opts in."""
    return [each for each in _labelled(api, *NAMESPACES) if opts(each, contract.NAMESPACE_LABEL) == "true"]


def _labelled(api: KubeClient, plural: str, label: str) -> list[Object]:
    return list(api.list(path(CORE_V1, plural), labelSelector=label)[0])


def opts(item: Object, label: str) -> object:
    """Return the value of a label that opts in."""
    return mapping(mapping(item, "metadata"), "labels").get(label)


def mislabelled(api: KubeClient) -> CheckResult:
    """Name the nodes and namespaces whose label has a value that does not opt in, and is no refusal either."""
    wrong = [
        (clean(f"{plural[:-1]} {each['metadata']['name']}"), clean(f"{label}={value}"))
        for plural, label in (NODES, NAMESPACES) for each in _labelled(api, plural, label)
        if (value := opts(each, label)) not in {"true", "false"}
    ]  # fmt: skip
    if not wrong:
        return ok("each true or false")
    what, value = wrong[0]
    named = some([f"{item} has {label}" for item, label in wrong])
    return warning(f"{named}; only true opts in", f"kubectl label --overwrite {what} {value.partition('=')[0]}=true")


def running_shares(api: KubeClient) -> list[Object]:
    """Return the pods with a share that have not ended, of all namespaces."""
    return [each for each in sharing_pods(api) if text(mapping(each, "status"), "phase") not in ENDED]


def pods(api: KubeClient, found: Installation, name: str) -> list[Object]:
    """Return the pods of a workload of the release."""
    items = api.list(path(CORE_V1, "pods", namespace=found.namespace), labelSelector=OURS)[0]
    return [each for each in items if _is_of(each, name)]


def _is_of(item: Object, name: str) -> bool:
    return mapping(mapping(item, "metadata"), "labels").get("app.kubernetes.io/name") == f"gpu-share-{name}"


def _ready(item: Object) -> bool:
    """Tell whether a pod or a node is Ready and stays."""
    conditions = objects(mapping(item, "status"), "conditions")
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return ready and "deletionTimestamp" not in mapping(item, "metadata")


def _unready(api: KubeClient, found: Installation, name: str) -> str:
    """Return the command that shows why a Deployment has not enough ready pods, or that gives it some."""
    named = [each for each in _workloads(api, "deployments", found.namespace) if _is_of(each, name)]
    if not named:
        return RESTORE
    if mapping(named[0], "spec").get("replicas") == 0:
        return f"kubectl scale -n {found.namespace} deployment gpu-share-{name} --replicas={REPLICAS[name]}"
    return _describe(found, name, there=bool(pods(api, found, name)))


def _describe(found: Installation, name: str, *, there: bool) -> str:
    """Return the command that shows why pods are not ready, or, where none is ``there``, why none is made."""
    which = f"-n {found.namespace} -l app.kubernetes.io/name=gpu-share-{name}"
    return _look(which) if there else f"kubectl describe deployments,replicasets,daemonsets {which}"


def _look(pods: str) -> str:
    """Return the commands that show why pods are not ready: a failed probe's reason is in the log alone."""
    return f"kubectl describe pods {pods}; kubectl logs {pods}"


def slices(api: KubeClient, *, ours: bool = True) -> list[Any]:
    """Return the ResourceSlices of gpu-share, or those of other drivers."""
    items = api.list(path(RESOURCE_V1, "resourceslices"))[0]
    return [each for each in items if (text(mapping(each, "spec"), "driver") == contract.DRIVER) is ours]


def reports(api: KubeClient) -> dict[str, EnforcerReport | None]:
    """Return what each enforcer reports, by node; ``None`` for a node whose slices hold no report."""
    found: dict[str, EnforcerReport | None] = {}
    for item in slices(api):
        node = text(mapping(item, "spec"), "nodeName")
        found[node] = _report(item) or found.get(node)
    return found


def noted(item: Object, key: str) -> Object:
    """Return the JSON object in an annotation; an empty one where that is none, or too long."""
    raw = text(mapping(mapping(item, "metadata"), "annotations"), key)
    with suppress(ValueError, RecursionError):
        read = json.loads(raw) if len(raw) <= MAX_REPORT else None
        return read if isinstance(read, dict) else {}
    return {}


def _report(item: Object) -> EnforcerReport | None:
    read = noted(item, contract.ENFORCER)
    problems = read.get("problems", [])
    if not text(read, "version") or not isinstance(problems, list):
        return None
    return EnforcerReport(
        version=clean(text(read, "version")),
        enforcing=read.get("enforcing") is not False,
        breaker=None if read.get("breaker") is None else clean(str(read["breaker"])),
        breaker_reason=clean(text(read, "breakerReason")),
        audit_log=clean(text(read, "auditLog")),
        problems=tuple(clean(str(each)) for each in problems),
    )


def reported(api: KubeClient) -> CheckResult:
    """Name the open circuit breakers, audit logs that cannot be written, and problems of all enforcers."""
    found = reports(api)
    wrong = [f"{node}: {each}" for node, report in found.items() if report for each in _grave(report)]
    if wrong:
        here = list(filter(None, found.values()))
        is_open, altered = any(each.breaker is not None for each in here), any(each.audit_log for each in here)
        return failed("; ".join(wrong), BREAKER if is_open else AUDIT if altered else CORRECT)
    if silent := [node for node, report in found.items() if report is None]:
        return _unreported(silent, labelled(api))
    idle = [node for node, report in found.items() if report and not report.enforcing]
    if idle:
        return warning(f"containers over quota are not killed on {some(idle)}", "chart value enforcer.enforce")
    return ok("audit logs intact and writable, circuit breakers closed" if found else "none yet")


def _unreported(silent: Sequence[str], wanted: Mapping[str, bool]) -> CheckResult:
    """Say whose report is missing or damaged; ``wanted``: whether each labelled node is Ready."""
    here = [node for node in silent if wanted.get(node)]
    hint = "an enforcer reports within seconds of its start: read its log, or run gpu-share check --node in its pod"
    answer = failed if here else warning
    return answer(f"no valid report from {some(here or silent)}", hint)


def _grave(report: EnforcerReport) -> Iterator[str]:
    if report.breaker is not None:
        since = f" since {report.breaker}" if report.breaker else ""
        yield f"circuit breaker open{since}: the enforcer kills nothing"
    if report.audit_log:
        yield f"audit log: {report.audit_log}"
    yield from report.problems


def versions(api: KubeClient) -> CheckResult:
    """Compare the releases of command line, webhook and enforcers."""
    found = installation(api)
    metadata = (mapping(pod, "metadata") for pod in pods(api, found, "webhook"))
    replicas = Counter(text(mapping(each, "labels"), VERSION_LABEL) for each in metadata)
    nodes = {node: report.version for node, report in reports(api).items() if report}
    detail = f"command line {installed()}, webhook {_named(replicas)}, enforcers {_named(Counter(nodes.values()))}"
    newest = max((each for each in map(release, replicas) if each), default=release(found.version))
    strange = [f"{node} ({version})" for node, version in nodes.items() if not supported(newest, release(version))]
    if strange:
        return failed(f"{detail}; not supported with this webhook: {some(strange)}", SKEW)
    if {found.version or installed(), *replicas, *nodes.values()} == {installed()}:
        return ok(detail)
    return warning(detail, "upgrade the older parts: command line, webhook and enforcers should have the same version")


def _named(versions: Mapping[str, int]) -> str:
    """Write versions with how many there are of each: ``0.2.0 (2), 0.1.0 (1)``."""
    counts = sorted(versions.items(), reverse=True)
    return ", ".join(f"{version or 'unknown'} ({number})" for version, number in counts) or "none"


def supported(webhook: tuple[int, int] | None, enforcer: tuple[int, int] | None) -> bool:
    """Tell whether an enforcer of that release works with a webhook of that one: the same, or the one before.

    The last minor release of a major version is not known here, so that each of them counts as the one before.
    """
    if webhook is None or enforcer is None:
        return True
    behind = webhook[1] - enforcer[1]
    return behind in {0, 1} if webhook[0] == enforcer[0] else (webhook[1], enforcer[0]) == (0, webhook[0] - 1)


def unsliced(api: KubeClient) -> CheckResult:
    """Name the labelled nodes that publish no device: without a GPU that is seen, a slice is empty."""
    names = labelled(api)
    if not names:
        return warning("none", LABEL)
    publishing = {text(mapping(item, "spec"), "nodeName") for item in slices(api) if objects(item["spec"], "devices")}
    silent = [name for name, ready in names.items() if ready and name not in publishing]
    if silent:
        detail = f"{len(names)} labelled; without a device in a ResourceSlice: {some(silent)}"
        return failed(detail, "see the lines about enforcers, then run gpu-share check --node in their pods")
    return ok(str(len(names)))
