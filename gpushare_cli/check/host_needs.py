"""What the sharing pods of each namespace use of their nodes, and the namespace does not list."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from shlex import quote

from gpushare import contract, host_access
from gpushare.errors import PolicyDenied
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
    detail = f"{counted(len({each.split()[3] for each in missing}), 'namespace')} with sharing pods that could not be"
    return warning(f"{detail} created again; allow what they use, or change the pods", "; ".join(missing))


def needs_of(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield annotation and value of what a pod uses; what no annotation allows is left out."""
    spec = mapping(pod, "spec")
    for volume in objects(spec, "volumes"):
        used = host_access.normal(mapping(volume, "hostPath").get("path"))
        if used and not host_access.overlaps(used, (*host_access.OF_EVERY_NODE, *host_access.OUR_OWN, "/dev")):
            yield contract.HOST_PATHS, used
    for container in (each for section in host_access.SECTIONS for each in objects(spec, section)):
        added = mapping(mapping(container, "securityContext"), "capabilities").get("add")
        names = map(host_access.capability, map(str, added)) if isinstance(added, list) else ()
        usual = host_access.CAPABILITIES | host_access.USUAL_CAPABILITIES
        yield from ((contract.ADDED_CAPABILITIES, each) for each in names if each not in usual)
        for name in (text(each, "name") for each in objects(container, "env")):
            if name.startswith(host_access.STEERING) and name not in host_access.HARMLESS:
                yield contract.TOOLKIT_VARIABLES, name


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
        covers = host_access.within if key == contract.HOST_PATHS else str.__eq__
        lacking = {each for each in values if not any(covers(each, one) for one in listed[key])}
        if lacking:
            wanted = quote(clean(",".join(sorted({*listed[key], *lacking}))))
            yield f"kubectl annotate namespace {name} --overwrite {key}={wanted}"
