"""Names and places that making, unpacking and running agree on."""

import os
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
MADE: Final = ROOT / ".build" / "parcel"
PARTS: Final = ("parcel-1.tar", "parcel-2.tar")
"""Files in that folder. What may travel in one call is 64 MiB, and the tree travels as well: hence two."""
FIRST_PART: Final = ("kubernetes", "etcd")
"""Programs of the first; everything else is in the second."""
HOME: Final = Path("/var/tmp/gpu-share-parcel")
"""On the machine: what was unpacked, and the folder of a run while it lasts."""
SEEN: Final = "/gpu-share"
"""Where containers see the parcel's Python packages and programs."""
CONTENT: Final = "content.json"
BINARIES: Final = "bin"
SITE: Final = "site"
"""What the product imports; the product itself is copied from the tree to ``PRODUCT`` at each run."""
PRODUCT: Final = "product"
SIMULATED: Final = "simulated"
"""The simulated driver's libraries, compiled."""
KUBERNETES: Final = "kubernetes"
"""The one program whose links are ``LINKS``."""
LINKS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "helm")
NODE: Final = "gpu-node-1"
USER: Final = 1000
"""Of tenants' containers."""
ADDRESS: Final = "10.0.0.1"
"""Of the node, and of the Service ``kubernetes``: the API server listens there, and no kube-proxy is needed."""


def python_tag() -> str:
    """Which Python's packages fit, such as ``3.12``."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def cache_environment(folder: Path) -> dict[str, str]:
    """What the test bed's modules find their programs by, and where they keep notes."""
    return {
        "KUBEBUILDER_ASSETS": str(folder / BINARIES),
        "PATH": f"{folder / BINARIES}:{os.environ.get('PATH', os.defpath)}",
    }
