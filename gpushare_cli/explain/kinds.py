"""Which object ``gpu-share explain`` is asked about: a pod, or a workload in the words of kubectl."""

from dataclasses import dataclass
from typing import Final

from gpushare.errors import ConfigError
from gpushare.kube_client import APPS_V1, BATCH_V1, CORE_V1
from gpushare_cli.options import pod_name


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that makes pods: its name, where it is, and kubectl's short name if it has one."""

    name: str
    base: str
    plural: str
    short: str = ""


DEPLOYMENT: Final = Kind("Deployment", APPS_V1, "deployments", "deploy")
REPLICA_SET: Final = Kind("ReplicaSet", APPS_V1, "replicasets", "rs")
JOB: Final = Kind("Job", BATCH_V1, "jobs")
CRON_JOB: Final = Kind("CronJob", BATCH_V1, "cronjobs", "cj")
DAEMON_SET: Final = Kind("DaemonSet", APPS_V1, "daemonsets", "ds")
POD: Final = Kind("Pod", CORE_V1, "pods", "po")
KINDS: Final = (
    POD, DEPLOYMENT, REPLICA_SET, JOB, CRON_JOB, DAEMON_SET, Kind("StatefulSet", APPS_V1, "statefulsets", "sts"),
    Kind("ReplicationController", CORE_V1, "replicationcontrollers", "rc"),
)  # fmt: skip
_WORDS: Final = {word: kind for kind in KINDS for word in (kind.name.lower(), kind.plural, kind.short) if word}


def target(words: str, namespace: str | None) -> tuple[Kind, str, str]:
    """Read ``POD``, ``NAMESPACE/POD`` or ``KIND/NAME``; the namespace is empty where none is given.

    ``KIND`` comes first: a pod in a namespace that is called like one, such as ``job``, is named with ``-n``.

    Raises:
        ConfigError: it is none of these.
    """
    before, _, name = words.partition("/")
    # As for kubectl, the API group may follow: deployment.apps.
    kind = _WORDS.get(before.lower().partition(".")[0])
    if kind is None and name and namespace not in {None, "", before}:
        known = ", ".join(each.short or each.name.lower() for each in KINDS)
        raise ConfigError(
            f"{before!r:.80} is neither a kind of workload ({known}) nor the namespace that -n "
            f"names ({namespace}); write POD or KIND/NAME"
        )
    if kind is None or not name:
        return (POD, *pod_name(words, namespace))
    if "/" in name:
        raise ConfigError(f"{words!r:.200} is not a workload; write KIND/NAME, and its namespace with -n")
    return kind, namespace or "", name
