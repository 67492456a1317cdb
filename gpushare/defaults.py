"""Every default of a flag, a setting or an annotation that the chart or a namespace can change. Pure.

The chart passes its values to the processes: ``tests/unit/deploy/test_defaults.py`` compares ``values.yaml`` with this.
"""

from collections.abc import Mapping
from typing import Final

# What a program leaves unused of a large limit: chart value enforcer.memoryReserve.
RESERVE_PERCENT: Final = 4

# The webhook: chart values webhook.*.
MIN_MEMORY_MIB: Final = 512
"""Below this little runs: a CUDA context takes 280 MiB on a small card and 520 to 710 on an H100."""
DEFAULT_COMPUTE: Final = "none"
ACROSS_NODES: Final = "none"
ROOT_TENANTS: Final = "allow"
RETENTION_SECONDS: Final = 300
SCHEDULER_NAMES: Final = ("default-scheduler",)

# Certificates: chart values certs.*.
CA_DAYS: Final = 365
LEAF_DAYS: Final = 30

# All processes.
SYSTEM_NAMESPACE: Final = "gpu-share-system"
"""The namespace that the chart is installed in, unless its user names another."""
LOG_LEVEL: Final = "info"
UNINSTALL_SECONDS: Final = 120.0

# Directories on a node: chart values stateDir, runDir, kubeletRoot and cdiRoot.
STATE_DIRECTORY: Final = "/var/lib/gpu-share"
RUN_DIRECTORY: Final = "/run/gpu-share"
KUBELET_ROOT: Final = "/var/lib/kubelet"
CDI_ROOT: Final = "/var/run/cdi"

# Namespaces without an annotation.
ON_EXCEED: Final = "kill"
GRACE_SECONDS: Final = 5.0
TOLERANCE_MIB: Final = 256
TOLERANCE_PERCENT: Final = 5

# The enforcer: chart values enforcer.*, mps.*, placement.* and compute.*.
TERMINATION_TIMEOUT: Final = 5.0
"""Seconds from SIGTERM to SIGKILL: a program that saves its work may need more than 2 s."""
ENFORCER: Final[Mapping[str, str | float]] = {
    "state": STATE_DIRECTORY,
    "run": RUN_DIRECTORY,
    "kubelet_root": KUBELET_ROOT,
    "cdi_root": CDI_ROOT,
    "poll_seconds": 0.5,
    "mode": "mps",
    "within_node": "binpack",
    "compute_overcommit": "1",
    "default_compute": DEFAULT_COMPUTE,
    "max_kills_per_minute": 3,
    "termination_timeout": TERMINATION_TIMEOUT,
    "reclaim_notice_seconds": 10.0,
    "health_taint": "NoSchedule",
    "limit_backend": "auto",
    "unaccounted": "report",
    "foreign_claims": "off",
    "limit_verification_seconds": 30.0,
    "mps_check_seconds": 30.0,
    "mps_shared_memory": "auto",
    "audit_keep_mib": 256,
    "audit_keep_segments": 0,
    "audit_keep_days": 0,
    "log_level": LOG_LEVEL,
}
"""Flags of the enforcer that have a chart value, by the name of the option."""
