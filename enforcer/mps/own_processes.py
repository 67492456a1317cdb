"""Find gpu-share's own processes on the node, whose GPU memory is accounted for."""

import os

from enforcer.attribution.procfs import CgroupAttributor
from enforcer.mps.launcher import HostPodLauncher
from enforcer.mps.manager import MpsManager


class EnforcerProcesses:
    """Knows the enforcer, MPS's daemons and servers, and the pods they are in.

    Args:
        attributor: finds the pod of a process.
        mps: the daemons; ``None``: there are none.
        launcher: the daemons' pod; ``None``: the enforcer starts them itself.
    """

    def __init__(self, attributor: CgroupAttributor, mps: MpsManager | None, launcher: HostPodLauncher | None) -> None:
        self._attributor, self._mps, self._launcher = attributor, mps, launcher

    def pods(self) -> frozenset[str]:
        """Return the UIDs of the pods that MPS's servers may be in: the enforcer's and the daemons'."""
        pids = [os.getpid(), None if self._launcher is None else self._launcher.pid()]
        seen = [self._attributor.identify(pid) for pid in pids if pid is not None]
        return frozenset(each.owner.pod_uid for each in seen if each is not None and each.owner is not None)

    def mps_servers(self) -> frozenset[int]:
        """Return the pids of the daemons and servers that are known now."""
        return frozenset() if self._mps is None else self._mps.pids()
