"""What the sharing pods of each namespace use of their nodes, and the namespace does not list."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from shlex import quote

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.host_access import (
    CAPABILITIES,
    HARMLESS,
    OF_EVERY_NODE,
    OUR_OWN,
    SECTIONS,
    STEERING,
    USUAL_CAPABILITIES,
    capability,
    normal,
    overlaps,
    within,
)
from gpushare.kube_client import KubeClient
from gpushare.namespace_policy import NamespacePolicy
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare_cli.check.result import CheckResult, ok, warning
from gpushare_cli.check.workloads import namespaces, running_shares
from gpushare_cli.words import clean, counted

Needs = Mapping[str, frozenset[str]]
"""By annotation, what has to be listed in it."""


def host_needs(api: KubeClient) -> CheckResult:
    """Name what would be refused if the pods that run now were created again, and the commands that allow it."""
    used: dict[str, dict[str, frozenset[str]]] = defaultdict(lambda: defaultdict(frozenset))
    for pod in running_shares(api):
        for key, value in needs_of(pod):
            space = used[text(mapping(pod, "metadata"), "namespace")]
            space[key] |= {value}
    if not used:
        return ok("sharing pods use no host paths, added capabilities or toolkit variables")
    spaces = [mapping(each, "metadata") for each in namespaces(api)]
    annotations = {text(each, "name"): mapping(each, "annotations") for each in spaces}
    missing = [
        command
        for name in sorted(annotations.keys() & used.keys())
        for command in _commands(name, annotations[name], used[name])
    ]
    if not missing:
        return ok("namespaces list all that sharing pods use")
    number = len({each.split()[3] for each in missing})
    detail = (
        f"{counted(number, 'namespace')} with sharing pods that could not be created again; allow what they use, or"
    )
    return warning(f"{detail} change the pods", "; ".join(missing))


def needs_of(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield annotation and value of what a pod uses; what no annotation allows is left out."""
    spec = mapping(pod, "spec")
    for volume in objects(spec, "volumes"):
        used = normal(mapping(volume, "hostPath").get("path"))
        if used and not overlaps(used, (*OF_EVERY_NODE, *OUR_OWN, "/dev")):
            yield contract.HOST_PATHS, used
    for container in (each for section in SECTIONS for each in objects(spec, section)):
        added = mapping(mapping(container, "securityContext"), "capabilities").get("add")
        names = map(capability, map(str, added)) if isinstance(added, list) else ()
        yield from (
            (contract.ADDED_CAPABILITIES, each) for each in names if each not in CAPABILITIES | USUAL_CAPABILITIES
        )
        variables = (text(each, "name") for each in objects(container, "env"))
        yield from (
            (contract.TOOLKIT_VARIABLES, each)
            for each in variables
            if each.startswith(STEERING) and each not in HARMLESS
        )


def _commands(name: str, annotations: Mapping[str, object], used: Needs) -> Iterator[str]:
    """Yield a command for each annotation that lacks something; it keeps what is listed already."""
    policy = NamespacePolicy()
    with suppress(PolicyDenied):
        policy = NamespacePolicy.from_annotations({key: str(value) for key, value in annotations.items()})
    listed = {
        contract.HOST_PATHS: policy.host_paths,
        contract.ADDED_CAPABILITIES: policy.added_capabilities,
        contract.TOOLKIT_VARIABLES: policy.toolkit_variables,
    }
    for key, values in sorted(used.items()):
        lacking = {each for each in values if not any(each == one or _covers(key, one, each) for one in listed[key])}
        if lacking:
            wanted = quote(clean(",".join(sorted({*listed[key], *lacking}))))
            yield f"kubectl annotate namespace {name} --overwrite {key}={wanted}"


def _covers(key: str, listed: str, used: str) -> bool:
    return key == contract.HOST_PATHS and within(used, listed)
