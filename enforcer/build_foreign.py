"""Build what brings in quotas of NVIDIA's DRA driver. ``enforcer/build.py`` calls it."""

import argparse
from functools import partial

from enforcer.attribution.container_names import ContainerNames
from enforcer.attribution.usage import UsageSampler
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.foreign_reader import EnforcedQuotas, ForeignRule, follow_foreign_claims, state_folder
from enforcer.quota.informer import LOOK_EVERY, STATE
from enforcer.quota.types import ForeignClaims
from enforcer.runtime.boot import boot_id
from enforcer.runtime.manager import Manager, Wake
from gpushare.kube_client import KubeClient


def enforced_quotas(
    options: argparse.Namespace, manager: Manager, cluster: KubeClient | None, watch: UsageSampler, own: Checkpoint
) -> Checkpoint:
    """Return the quotas to enforce: our own, and if operators want that, those of NVIDIA's DRA driver.

    Raises:
        OSError: the state directory cannot be written.
    """
    if cluster is None or options.foreign_claims is ForeignClaims.OFF:
        return own
    foreign, due = Checkpoint(state_folder(options.state)), Wake()
    rule = ForeignRule(options.node, foreign, own, boot_id())
    manager.add("foreign-gpus", partial(_take_gpus, rule, watch), every=LOOK_EVERY, thread=STATE)
    # Names of its own: those of the node's own quotas say what is unknown of pods with a share of ours.
    names = ContainerNames(options.kubelet_root, due)
    follow_foreign_claims(manager, cluster, rule, foreign, names, due)
    return EnforcedQuotas(own, foreign, report=options.foreign_claims is ForeignClaims.REPORT)


def _take_gpus(rule: ForeignRule, watch: UsageSampler) -> None:
    rule.set_gpus(view.gpu for view in watch.latest)
