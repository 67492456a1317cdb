"""The steps of a rehearsal: what each does to the cluster, when it can be done, and what it may bring with it.

Real nodes in namespaces of one machine take them. Left out is what these cannot take: a reboot and a clock step, which
``tests/e2e/vm`` has on a virtual machine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.rehearsal import acts, nodes, releases
from tests.rehearsal.acts import CERTS, ENFORCER, MPS, WEBHOOK, Act, deleted, killed, one_deleted, restarted
from tests.rehearsal.state import Allowed, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    ``part``: what is replaced, for the table; ``ready``: whether it can be taken in a state; ``nodes``: how many it
    needs; ``earlier``: whether it needs images of an earlier commit.
    """

    name: str
    part: str
    act: Act
    allowed: Allowed = field(default_factory=Allowed)
    ready: Callable[[State], bool] = lambda _: True
    nodes: int = 1
    earlier: bool = False


def has_daemons(state: State) -> bool:
    """Whether a GPU has an MPS daemon."""
    return bool(state.daemons)


NEW_DAEMON: Final = Allowed(daemons=1, restarts=2, fewer=True)
"""A container that starts again before the new daemon does ends once more."""
NO_TENANTS: Final = Allowed(daemons=1)
"""GPUs get new MPS daemons while nobody uses them."""
NO_ENFORCER: Final = Allowed(daemons=1, restarts=5, fewer=True)
"""With the enforcer goes what simulates the GPUs: a tenant that lost its MPS daemon finds none until it is back."""
SERVER: Final = "Kubernetes' servers"
WHOLE: Final = "release"
EARLIER: Final = "release, by an earlier commit"
KUBELET: Final = "kubelet"
NODE: Final = "node"
MODE: Final = "sharing mode of a node"
DRIVER: Final = "driver, by the GPU Operator"
FIRST: Final = {
    MPS: "drain the node's sharing pods",
    WHOLE: "delete the shares before you uninstall",
    KUBELET: "nothing; drain the node before another minor version",
    NODE: "cordon, and drain half a minute later",
    DRIVER: "see below",
}
"""By part, what an operator does first; nothing for others."""

STEPS: Final = {
    step.name: step
    for step in (
        Step(name="one-webhook-deleted", part="webhook", act=one_deleted(WEBHOOK)),
        Step(name="all-webhooks-killed", part="webhook", act=deleted(WEBHOOK, force=True)),
        Step(name="webhook-process-killed", part="webhook", act=killed(b"gpu-share\0webhook\0")),
        Step(name="webhooks-away", part="webhook", act=acts.webhooks_away),
        Step(
            name="webhook-of-another-image",
            part="webhook",
            act=releases.of_another_image(f"deployment/{WEBHOOK}", "webhook"),
        ),
        Step(name="enforcer-deleted", part="enforcer", act=deleted(ENFORCER)),
        Step(name="enforcer-killed", part="enforcer", act=killed(b"--poll-seconds", b"--kubelet-root")),
        Step(name="enforcer-away", part="enforcer", act=acts.enforcer_away),
        Step(
            name="enforcer-of-another-image",
            part="enforcer",
            act=releases.of_another_image(f"daemonset/{ENFORCER}", "enforcer"),
        ),
        Step(name="sidecar-killed", part="sidecar", act=killed(b"gpu-share\0sidecar"), allowed=Allowed(sidecars=1)),
        Step(name="certs-deleted", part="certs", act=deleted(CERTS)),
        Step(name="authority-lost", part="certs", act=acts.secret_lost("gpu-share-webhook-tls-ca")),
        Step(name="certificate-lost", part="certs", act=acts.secret_lost("gpu-share-webhook-tls")),
        Step(name="mps-pod-replaced", part=MPS, act=deleted(MPS), allowed=NEW_DAEMON, ready=has_daemons),
        Step(
            name="mps-daemon-killed",
            part=MPS,
            act=acts.daemon_killed,
            allowed=NEW_DAEMON,
            ready=has_daemons,
        ),
        Step(
            name="webhook-of-an-earlier-commit",
            part=EARLIER,
            act=releases.of_an_earlier_commit("webhook.yaml"),
            earlier=True,
        ),
        Step(
            name="enforcer-of-an-earlier-commit",
            part=EARLIER,
            act=releases.of_an_earlier_commit("enforcer.yaml"),
            earlier=True,
        ),
        Step(name="earlier-commit-and-back", part=EARLIER, act=releases.earlier_and_back, earlier=True),
        Step(name="chart-upgraded-and-rolled-back", part=WHOLE, act=releases.upgraded_and_back),
        Step(
            name="limit-backend-changed",
            part=WHOLE,
            act=releases.with_values("enforcer.limitBackend=watch-only", back="enforcer.limitBackend=auto"),
        ),
        Step(name="uninstallation-refused", part=WHOLE, act=releases.uninstallation_refused),
        Step(name="uninstalled-and-installed", part=WHOLE, act=releases.uninstalled_and_installed, allowed=NO_ENFORCER),
        Step(name="apiserver-restarted", part=SERVER, act=restarted("kube-apiserver")),
        Step(name="etcd-restarted", part=SERVER, act=restarted("etcd")),
        Step(name="scheduler-restarted", part=SERVER, act=restarted("kube-scheduler")),
        Step(name="controller-manager-restarted", part=SERVER, act=restarted("kube-controller-manager")),
        Step(
            name="control-plane-restarted",
            part=SERVER,
            act=restarted("kube-controller-manager", "kube-apiserver", "etcd"),
        ),
        Step(name="kubelet-restarted", part=KUBELET, act=acts.kubelet_away(0, 8)),
        Step(
            name="kubelet-away",
            part=KUBELET,
            act=acts.kubelet_away(60, 80),
            allowed=Allowed(fewer=True),
            nodes=2,
        ),
        Step(name="kubelet-of-the-oldest-kubernetes", part=KUBELET, act=nodes.older_kubelet),
        Step(name="containerd-restarted", part="containerd", act=acts.containerd_restarted),
        Step(name="containerd-of-an-older-version", part="containerd", act=nodes.older_containerd),
        Step(name="namespace-out-and-in", part="a namespace's label", act=acts.namespace_out_and_in),
        Step(name="node-cordoned", part=NODE, act=nodes.cordoned),
        Step(name="node-drained", part=NODE, act=nodes.drained),
        Step(name="node-taken-out-and-in", part=NODE, act=nodes.taken_out_and_in, allowed=NO_TENANTS, nodes=2),
        Step(name="driver-upgraded", part=DRIVER, act=nodes.driver_upgraded, allowed=NO_TENANTS),
        Step(name="sharing-mode-changed", part=MODE, act=nodes.mode_changed, allowed=NO_TENANTS),
    )
}
