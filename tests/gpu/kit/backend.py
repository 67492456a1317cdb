"""The door between experiments and a machine, real or simulated: experiments import this and never what is behind."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from enforcer.attribution.cgroup import ContainerRef
from enforcer.mps.daemon import MpsDaemon
from enforcer.nvml.reader import NvmlReader
from tests.gpu.kit.client import Client
from tests.gpu.kit.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the machine before the first experiment; goes into results.json as it is.

    ``missing`` maps what cannot be had (names of ``registry.NEEDS``) to a sentence saying why. ``memory_mib`` is the
    card's, ``known`` anything else worth a line: sandbox, cgroup mount, PyTorch's version.
    """

    driver: str = ""
    cuda: str = ""
    model: str = ""
    memory_mib: int = 0
    compute_capability: str = ""
    kernel: str = ""
    uid: int = 0
    missing: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As JSON carries it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a program answered: exit status (``None``: it did not end in time), both outputs, seconds it took."""

    status: int | None
    out: str
    err: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Container:
    """A cgroup named as Kubernetes names a container's; ``procs`` takes its processes."""

    owner: ContainerRef
    folder: Path

    @property
    def procs(self) -> str:
        return str(self.folder / "cgroup.procs")


class Backend(Protocol):
    """One machine with the one GPU that is measured, for the length of one experiment.

    ``tmp`` is short, private to the experiment, and readable by every uid. Whatever is started through here is ended
    when the experiment ends.
    """

    name: str
    """``real`` or ``fake``."""
    gpu: str
    """UUID."""
    tmp: Path
    facts: Facts
    journal: Journal
    allow_mode_change: bool

    def client(
        self,
        env: Mapping[str, str] | None = None,
        *,
        uid: int | None = None,
        cgroup: str | None = None,
        gpu: str | None = None,
        private_shm: bool = False,
        server_files: bool = False,
        arguments: Sequence[str] = (),
        wait: bool = True,
    ) -> Client:
        """Start ``tests/gpu/client.py``; with ``wait`` its first line has been read (see ``Client.usable``).

        Args:
            env: added to a bare environment without any CUDA or MPS variable. ``daemon_env`` is what a tenant gets.
            uid: user it runs as; ``None``: ours.
            cgroup: ``Container.procs``; it is inside before its first instruction.
            gpu: what ``--gpu`` names; ``None``: the measured GPU's UUID, ``""``: whatever CUDA calls 0.
            private_shm: in a mount namespace of its own with an empty /dev/shm.
            server_files: with the files of MPS servers in it.
            arguments: more of them for the program.
            wait: ``False`` returns at once; call ``ready`` later.

        Raises:
            ClientTimeoutError, ClientGoneError: it did not get as far as its first line.
        """

    def daemon_env(self, daemon: MpsDaemon, **more: str) -> dict[str, str]:
        """What a tenant of this daemon gets in its environment: pipe directory, GPU, and ``more``."""

    def reader(self) -> NvmlReader:
        """The product's own NVML reader."""

    def nvml(self, name: str, *arguments: Any) -> Any:
        """One raw call of nvidia-ml-py, JSON-like; ``"@"`` stands for the measured GPU's handle.

        A failure is an answer too: ``{"error": 3, "name": "NVMLError_NotSupported"}``.
        """

    def mps(
        self, *, limit_mib: int | None = None, single_user: bool = False, exclusive: bool = False, name: str = "mps"
    ) -> AbstractContextManager[MpsDaemon]:
        """The product's own ``MpsDaemon``, started, stopped at the end. ``None``: a limit as large as the card.

        ``single_user``: as a program starts it that takes no ``-multiuser-server``.

        Raises:
            NotMeasurable: no MPS programs; ``exclusive`` without leave to change the mode.
        """

    def control(self, daemon: MpsDaemon, command: str, *, uid: int | None = None, timeout: float = 10.0) -> Said:
        """One line to the daemon through NVIDIA's control program, as some user, with everything it answers."""

    def silent_holder(self, daemon: MpsDaemon, uid: int) -> AbstractContextManager[int]:
        """A process of that user that connects to the daemon's control socket and says nothing; its pid."""

    def exclusive(self) -> AbstractContextManager[None]:
        """EXCLUSIVE_PROCESS inside, what there was before afterwards. Raises ``NotMeasurable`` without leave."""

    def container(self) -> AbstractContextManager[Container]:
        """A tenant's cgroup. Raises ``NotMeasurable`` where none can be made."""

    def fixture(self, name: str, text: str) -> None:
        """Keep a raw output as ``tests/fixtures/gpu/<driver>/<name>`` would have it."""
