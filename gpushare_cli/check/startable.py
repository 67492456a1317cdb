"""Ask whether a share of the usual size could start: on which nodes, and in which namespaces that opted in."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare import contract
from gpushare.errors import GpuShareError
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.raw_objects import Object, mapping, text
from gpushare_cli.check import workloads
from gpushare_cli.check.installation import installation
from gpushare_cli.check.result import CheckResult, ok, warning
from gpushare_cli.check.trial import USUAL_MIB
from gpushare_cli.placement.placing import Cause, Cluster, Hindrance, place
from gpushare_cli.words import clean, counted, some
from webhook.mutation.settings import DEFAULT_TOLERATIONS, Settings

SHARE: Final[Object] = {
    "spec": {"devices": {"requests": [{"name": "main", "exactly": {
        "deviceClassName": contract.DEVICE_CLASS,
        "capacity": {"requests": {contract.CAPACITY_MEMORY: f"{USUAL_MIB}Mi"}},
    }}]}},
}  # fmt: skip
"""A claim of the usual size."""


def on_nodes(api: KubeClient) -> CheckResult:
    """Look for nodes that would take a share, were nothing on their GPUs: not cordoned, tainted or unhealthy."""
    pod = {"spec": {"tolerations": _tolerations(installation(api).environment)}}
    nodes, labelled = workloads.nodes(api), workloads.labelled(api)
    slices = [each for each in workloads.slices(api) if text(mapping(each, "spec"), "nodeName") in labelled]
    found = place(pod, [SHARE], Cluster(nodes=nodes, slices=slices))
    here, why = found.nodes or (), found.hindrances
    if not here and any(each.cause is not Cause.OTHER_GPU for each in why):
        return warning(f"no share of {USUAL_MIB}Mi can start: {some(_messages(why))}", _hint(why))
    where = counted(len(here), "node") if here else "no node; MIG instances only"
    return ok(f"{where}; not {some(_messages(why))}" if here and why else where)


def in_namespaces(api: KubeClient) -> CheckResult:
    """Look for ResourceQuotas that leave no room for the claim of one more share."""
    names = [each["metadata"]["name"] for each in workloads.namespaces(api)]
    quotas = defaultdict[str, list[Object]](list)
    for each in api.list(path(CORE_V1, "resourcequotas"))[0]:
        quotas[text(mapping(each, "metadata"), "namespace")].append(each)
    found = {name: place({}, [SHARE], Cluster(quotas=quotas[name])).hindrances for name in names if name in quotas}
    full = {name: why for name, why in found.items() if why}
    if not full:
        return ok(f"in {counted(len(names), 'namespace')}")
    wrong = [clean(f"{name}: {why[0].message}") for name, why in full.items()]
    where = f"not in {len(full)} of {counted(len(names), 'namespace')}"
    return warning(f"{where}: {some(wrong)}", _hint([each for why in full.values() for each in why]))


def _tolerations(environment: Mapping[str, str]) -> list[Object]:
    try:
        return list(Settings.from_environment(environment).tolerations)
    except GpuShareError:
        return list(DEFAULT_TOLERATIONS)


def _messages(why: Sequence[Hindrance]) -> list[str]:
    return [clean(each.message) for each in why]


def _hint(why: Sequence[Hindrance]) -> str:
    return next(filter(None, (each.hint for each in why)), "")
