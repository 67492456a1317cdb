"""What to write instead of an annotation that YAML did not read as a string. Pure."""

import json
from collections.abc import Mapping
from typing import Final

from gpushare import contract

_EXAMPLES: Final[Mapping[str, str]] = {
    contract.MEMORY: "4Gi",
    contract.COMPUTE: "25%",
    contract.PRIORITY: "low or normal",
    contract.GPU_MODEL: '"H100" or "H100,A100"',
    contract.SAME_GPU: '"true" or "false", in quotes',
    contract.GPUS: '"2", in quotes',
    contract.MIG_PROFILE: "1g.10gb",
    contract.DEFAULT_MEMORY: "4Gi",
    contract.DEFAULT_COMPUTE: "25%",
    contract.MAX_MEMORY: "4Gi",
    contract.MAX_COMPUTE: "25%",
    contract.ON_EXCEED: "kill, kill-container or warn",
    contract.GRACE_PERIOD: "5s",
    contract.TOLERANCE: "256Mi or 5%",
    contract.OWN_CLAIMS: "any",
    contract.HOST_PATHS: "/mnt/models,/scratch",
    contract.ALLOWED_CAPABILITIES: "compute,utility,video",
    contract.FRAMEWORKS: "jax, torch or none",
    contract.MEMORY_OF: "4Gi",
    contract.COMPUTE_OF: "25%",
    contract.MIG_PROFILE_OF: "1g.10gb",
    contract.GPUS_OF: '"2", in quotes',
}
"""Values by annotation, and by the beginning of the annotations of one container."""


def no_string(key: str, value: object) -> str:
    """Say what to write instead of an annotation, of a pod or a namespace, that YAML did not read as a string."""
    example = _EXAMPLES.get(next((of for of in contract.CONTAINER_PREFIXES if key.startswith(of)), key))
    # An unknown key is refused next, by a message that lists the known ones.
    advice = "write one, in quotes" if example is None else f"write for example {example}"
    return f"{json.dumps(value):.40} is not a string, and annotations are strings; {advice}"
