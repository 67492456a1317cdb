"""The commands that allow what sharing pods use: after them, nothing is missing and no such pod is refused."""

import shlex
from typing import Any

from gpushare import contract
from gpushare.findings import collect
from gpushare.host_access import HostAccess, check
from gpushare.namespace_policy import NamespacePolicy
from gpushare_cli.check.result import Level
from gpushare_cli.check.startable import host_needs
from tests.unit.gpushare_cli.check.api import Api

Json = dict[str, Any]


def pod(namespace: str, *paths: str, add: tuple[str, ...] = (), env: tuple[str, ...] = ()) -> Json:
    main = {"securityContext": {"capabilities": {"add": list(add)}}, "env": [{"name": each} for each in env]}
    volumes = [{"name": "v", "hostPath": {"path": each}} for each in paths]
    return {"metadata": {"namespace": namespace}, "spec": {"containers": [main], "volumes": volumes}}


def test_the_commands_allow_what_the_pods_use() -> None:
    pods = [
        pod("team", "/data/a", "/data/b/", add=("CAP_IPC_LOCK", "CHOWN"), env=("NVIDIA_GDS", "PATH")),
        pod("team", "/scratch"),
        pod("content", "/data/a"),
        pod("gone", "/x") | {"status": {"phase": "Succeeded"}},
        pod("never", "/var/lib/kubelet", add=("SYS_ADMIN",)),
    ]
    team: Json = {"metadata": {"name": "team", "annotations": {contract.HOST_PATHS: "/scratch,/old"}}}
    content: Json = {"metadata": {"name": "content", "annotations": {contract.HOST_PATHS: "/data"}}}
    never: Json = {"metadata": {"name": "never"}}
    api: Any = Api({"pods": pods, "namespaces": [team, content, never]})
    found = host_needs(api)
    assert (found.level, "1 namespace" in found.detail) == (Level.WARNING, True)
    for command in found.hint.split("; "):
        words = shlex.split(command)
        assert words[:5] == ["kubectl", "annotate", "namespace", "team", "--overwrite"]
        key, _, value = words[5].partition("=")
        team["metadata"]["annotations"][key] = value
    assert team["metadata"]["annotations"] == {
        contract.HOST_PATHS: "/data/a,/data/b,/old,/scratch",
        contract.ADDED_CAPABILITIES: "IPC_LOCK",
        contract.TOOLKIT_VARIABLES: "NVIDIA_GDS",
    }
    assert host_needs(api).level is Level.OK
    policy = NamespacePolicy.from_annotations(team["metadata"]["annotations"])
    for each in pods[:2]:
        collect(check, each, policy.host_access(HostAccess()))


def test_where_nothing_is_used_nothing_is_asked() -> None:
    api: Any = Api({"pods": [pod("team")], "namespaces": [{"metadata": {"name": "team"}}]})
    assert host_needs(api).level is Level.OK
