"""Show the DeviceTaintRules of administrators that keep new pods from our GPUs, or evict those that run there."""

from http import HTTPStatus
from typing import Any, Final

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from gpushare.raw_objects import Object, mapping, text
from gpushare_cli.check.result import CheckResult, ok, warning
from gpushare_cli.words import clean, some

SERVED: Final = (RESOURCE_V1, "/apis/resource.k8s.io/v1beta2")
"""API versions that have the kind, newest first."""
PLURAL: Final = "devicetaintrules"
HINT: Final = (
    "they keep pods off these GPUs, or evict them; an operator created them; to remove one: "
    "kubectl delete devicetaintrule NAME"
)


def taint_rules(api: KubeClient) -> CheckResult:
    """Name each rule that can match a GPU of ours, with its taint and with what it matches."""
    found = [_described(each) for each in _rules(api) if _is_ours(each)]
    return warning(some(found), HINT) if found else ok("none")


def _rules(api: KubeClient) -> list[Any]:
    for version in SERVED:
        try:
            return api.list(path(version, PLURAL))[0]
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    return []


def _is_ours(rule: Object) -> bool:
    """Tell whether a rule can match our devices. One without a selector matches none, one without a driver all."""
    selector = mapping(rule, "spec").get("deviceSelector")
    return isinstance(selector, dict) and selector.get("driver") in {None, contract.DRIVER}


def _described(rule: Object) -> str:
    spec = mapping(rule, "spec")
    taint, selector = mapping(spec, "taint"), mapping(spec, "deviceSelector")
    value = f"={text(taint, 'value')}" if text(taint, "value") else ""
    name = text(mapping(rule, "metadata"), "name")
    on = ", ".join(f"{key} {each}" for key in ("pool", "device") if (each := text(selector, key))) or "every GPU"
    return clean(f"{name} ({text(taint, 'key')}{value}:{text(taint, 'effect')} on {on})")
