"""What hardware a simulated machine has: the lines of a machine file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

MACHINES: Final = Path(__file__).parent / "machines"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGpu:
    """One GPU as a machine file describes it; memory in MiB, ``minor`` need not equal the position.

    A MIG instance is one with a ``parent``; ``minor`` is its position on that GPU, and its name ends in its profile.
    """

    uuid: str
    name: str
    memory_mib: int
    reserved_mib: int = 0
    cc: str = "8.0"
    sms: int = 74
    """Multiprocessors. The imaginary card has 74, so that a bare context on it takes 300 MiB."""
    minor: int = 0
    pci: str = "00000000:01:00.0"
    mig: bool = False
    parent: str = ""

    @property
    def usable_mib(self) -> int:
        return self.memory_mib - self.reserved_mib

    @property
    def bare_context_mib(self) -> int:
        """What the context of a bare client takes, as ``process.c`` has it."""
        return 24 + self.sms * 373 // 100

    def line(self) -> str:
        values = {name: getattr(self, name) for name in ("uuid", "name", "memory_mib", "reserved_mib")}
        values |= {"cc": self.cc, "sms": self.sms, "minor": self.minor, "pci": self.pci} | (
            {"mig": 1} if self.mig else {}
        )
        return line_of("mig", values | {"parent": self.parent}) if self.parent else line_of("gpu", values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node's driver and its GPUs, in NVML's order."""

    driver: str
    nvml: str
    cuda: int
    gpus: tuple[MachineGpu, ...]
    instances: tuple[MachineGpu, ...] = ()
    """Of GPUs in MIG mode."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a machine file. Raises ``ValueError`` naming the line."""
        system: dict[str, str] = {}
        found: dict[str, list[MachineGpu]] = {"gpu": [], "mig": []}
        for line in filter(None, text.splitlines()):
            head, *rest = line.split("\t")
            try:
                if head in found:
                    found[head].append(_gpu(dict(part.split("=", 1) for part in rest)))
                else:
                    system |= dict([head.split("=", 1)])
            except (KeyError, ValueError) as error:
                raise ValueError(f"machine line {line!r}: {error!r}") from error
        cards, parts = tuple(found["gpu"]), tuple(found["mig"])
        return cls(
            driver=system["driver"], nvml=system["nvml"], cuda=int(system["cuda"]), gpus=cards, instances=parts
        )  # fmt: skip

    @classmethod
    def named(cls, name: str) -> Self:
        """Read ``machines/<name>.machine``. Raises ``ValueError`` naming those that exist."""
        known = sorted(file.stem for file in MACHINES.glob("*.machine"))
        if name not in known:
            raise ValueError(f"no machine {name!r}; there are {', '.join(known)}")
        return cls.parse((MACHINES / f"{name}.machine").read_text())

    def text(self) -> str:
        system = f"driver={self.driver}\nnvml={self.nvml}\ncuda={self.cuda}\n"
        return system + "".join(gpu.line() + "\n" for gpu in (*self.gpus, *self.instances))


def _gpu(row: dict[str, str]) -> MachineGpu:
    return MachineGpu(
        uuid=row["uuid"], name=row["name"], memory_mib=int(row["memory_mib"]),
        reserved_mib=int(row.get("reserved_mib", "0")), cc=row["cc"], sms=int(row.get("sms", "74")),
        minor=int(row["minor"]), pci=row["pci"],
        mig=row.get("mig") == "1", parent=row.get("parent", ""),
    )  # fmt: skip


def line_of(head: str | None, values: Mapping[str, object]) -> str:
    """TAB-separated key=value parts behind a head."""
    return "\t".join(([head] if head else []) + [f"{key}={value}" for key, value in values.items()])
