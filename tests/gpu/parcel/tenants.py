"""Programs that use a GPU in a pod: real ones, and on the simulator the one that plays them; pods around them."""

from dataclasses import dataclass
from typing import Any, Final

from gpushare.contract import MEMORY
from tests.gpu.parcel.image import PLAIN
from tests.gpu.parcel.layout import USER

Object = dict[str, Any]
CLIENT: Final = "/gpu-share/programs/client.py"
MAIN: Final = "main"
FOREVER: Final = "sleep 100000"
OUT_OF_MEMORY: Final = "out of memory"


@dataclass(frozen=True, slots=True)
class Programs:
    """Shell scripts for containers. ``simulated``: no CUDA is there, ``gpu-share-tenant`` asks the simulator."""

    simulated: bool

    def hold(self, mib: int) -> str:
        """Hold that much until it is ended; the context of a real program comes on top."""
        return f"exec gpu-share-tenant hold {mib}Mi" if self.simulated else client(f"alloc {mib}", FOREVER)

    def grow(self, mib: int, then: int) -> str:
        """Hold ``mib``, and after two seconds ask for ``then`` in all: ends where it is refused."""
        if self.simulated:
            return f"exec gpu-share-tenant hold {mib}Mi --then {then}Mi --after 2s --for 6s"
        return client(f"alloc {mib}", "sleep 2", f"alloc {then - mib}", "meminfo")

    def several(self, count: int, mib: int) -> str:
        """So many processes that hold ``mib`` each."""
        one = f"gpu-share-tenant hold {mib}Mi" if self.simulated else client(f"alloc {mib}", FOREVER)
        starts = "\n".join(f"({one}\n) &" for _ in range(count))
        return f"{starts}\nwait"

    def compute(self, mib: int, side: int = 512) -> str:
        """Hold ``mib`` and multiply matrices without end; a line for each half second says whether all is right."""
        if self.simulated:
            return f"exec gpu-share-tenant hold {mib}Mi --dies-with-server"
        # The program ends at the first error, so that its container starts again.
        return (
            f"( echo alloc {mib}; while :; do echo gemm {side} 0.5s; sleep 0.5; done ) | python3 {CLIENT} | "
            'while read -r line; do echo "$line"; case $line in *error*) exit 1;; esac; done'
        )

    def fault(self) -> str:
        """A kernel that writes where nothing is."""
        return client("alloc 64", "sleep 1", "fault", "sleep 2")


def client(*commands: str) -> str:
    """The CUDA program with these commands, as a child of a shell that ends when it is told to."""
    lines = "\n".join(commands)
    return f"trap 'exit 143' TERM\npython3 {CLIENT} <<'E' &\n{lines}\nE\nwait $!"


def container(script: str, image: str = PLAIN, **more: Any) -> Object:
    """A container with a script, as a user that is not root."""
    return {
        "name": MAIN,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "securityContext": {"runAsUser": USER, "runAsNonRoot": True, "allowPrivilegeEscalation": False},
        **more,
    }


def pod(name: str, script: str, memory: str | None, restart: str = "Always", **annotations: str) -> Object:
    """A pod of one container with a share, or without one where ``memory`` is ``None``."""
    asked = {**({MEMORY: memory} if memory else {}), **annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": asked},
        "spec": {
            "containers": [container(script)],
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": restart,
        },
    }


def plain(name: str, script: str) -> Object:
    """A pod that sees the GPU and has no share: privileged, because nothing gives it the device otherwise."""
    made = pod(name, script, None, restart="Never")
    made["spec"]["containers"][0]["securityContext"] = {"privileged": True, "runAsUser": 0}
    return made
