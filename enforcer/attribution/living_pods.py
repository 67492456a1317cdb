"""Which pods have processes on this machine, whatever the API server says of them."""

from pathlib import Path

from enforcer.attribution.procfs import CgroupAttributor


def living_pods(attributor: CgroupAttributor, proc: Path = Path("/proc")) -> frozenset[str]:
    """UIDs of the pods that have processes here."""
    identities = (attributor.identify(int(entry.name)) for entry in proc.iterdir() if entry.name.isdecimal())
    return frozenset(each.owner.pod_uid for each in identities if each is not None and each.owner is not None)
