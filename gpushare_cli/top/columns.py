"""The columns of the tables of ``gpu-share top``, which ``--sort`` takes. Pure."""

from typing import Final

NODE_GPUS: Final = ("GPU", "MODEL", "MODE", "MEM-USED/LIMIT/TOTAL", "UNACCOUNTED", "CLIENTS")
NODE_CONTAINERS: Final = ("GPU", "NAMESPACE/POD", "CONTAINER", "PID", "MEM/QUOTA", "BORROWED", "STATE")
ALL_GPUS: Final = ("NODE", "GPU", "MODEL", "MODE", "UTIL", "USED", "RESERVED", "TOTAL", "SHARES", "STATE")
ALL_CONTAINERS: Final = (
    "NODE", "GPU", "NAMESPACE/POD", "CONTAINER", "UTIL", "USED", "QUOTA", "RESERVED", "KILL-IN", "STATE",
)  # fmt: skip
OF_NAMESPACE: Final = ("POD", "CONTAINER", "GPU", "USED", "PEAK", "QUOTA", "BORROWED", "KILLS", "RESTARTS", "STATE")
SORT: Final = tuple(
    dict.fromkeys(name.lower() for name in (*NODE_GPUS, *NODE_CONTAINERS, *ALL_GPUS, *ALL_CONTAINERS, *OF_NAMESPACE))
)
