"""What is measured side by side: our webhook, and floors that answer a constant. All with one certificate."""

import hashlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.integration.controlplane.programs import environment
from tests.load.bench.usage import children, cpu_seconds, on_one_core
from tests.support.patience import holds_within
from tests.support.webhook import serving
from tests.testbed.cluster.binaries import cache_root
from tests.testbed.cluster.ports import free_ports
from tests.testbed.cluster.processes import end, spawn, tail

OURS, WSGI, FLASK, GO = "gpu-share", "WSGI floor", "Flask floor", "Go floor"
LEFT_OUT: Final = {"HAMi": "the Go module proxy answers 403 for github.com/Project-HAMi/HAMi"}
SOURCE: Final = Path(__file__).with_name("floor.go")
START_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server on a port; ``ca`` is PEM."""

    name: str
    port: int
    ca: str
    pid: int

    def cpu(self) -> float:
        """Return the CPU seconds that it has used, with its workers."""
        return sum(map(cpu_seconds, [self.pid, *children(self.pid)]))


@contextmanager
def ours(folder: Path) -> Iterator[Candidate]:
    """Start our webhook on one core; its certificate stays in ``folder / "certs"``."""
    with ExitStack() as stack:
        with on_one_core():
            webhook = stack.enter_context(serving(folder))
        yield Candidate(OURS, webhook.port, webhook.authority.bundle.decode(), webhook.process.pid)


@contextmanager
def all_of_them(folder: Path) -> Iterator[list[Candidate]]:
    """Start our webhook and the floors. Those in Python have one core; Go has all, and is missing without Go."""
    with ExitStack() as stack:
        product = stack.enter_context(ours(folder))
        files = (folder / "certs" / "tls.crt", folder / "certs" / "tls.key")
        found = [product]
        for name, application in ((WSGI, "wsgi"), (FLASK, "flask")):
            with on_one_core():
                found.append(stack.enter_context(started(name, gunicorn(application, *files), folder, product.ca)))
        if shutil.which("go"):
            found.append(stack.enter_context(started(GO, go(*files), folder, product.ca)))
        yield found


def left_out() -> dict[str, str]:
    """Return what cannot be measured here, with the reason."""
    return LEFT_OUT if shutil.which("go") else {**LEFT_OUT, GO: "go is not on PATH"}


def gunicorn(application: str, certificate: Path, key: Path) -> list[str]:
    """Return the command that serves a floor in Python; its port comes last."""
    command = [sys.executable, "-m", "gunicorn", f"tests.load.bench.floor:{application}", "--worker-class=gthread"]
    command += ["--threads=32", "--keep-alive=95", "--no-control-socket", f"--certfile={certificate}"]
    return [*command, f"--keyfile={key}", "--bind=127.0.0.1:{port}"]


def go(certificate: Path, key: Path) -> list[str]:
    """Return the command that serves the floor in Go, which is built where the cache lacks it."""
    version = subprocess.run(["go", "version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(SOURCE.read_bytes() + version).hexdigest()[:12]
    binary = cache_root() / f"bench-floor-{digest}"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_root()) as folder:
            subprocess.run(["go", "build", "-o", f"{folder}/floor", str(SOURCE)], check=True)
            (Path(folder) / "floor").replace(binary)
    return [str(binary), "{port}", str(certificate), str(key)]


@contextmanager
def started(name: str, command: list[str], folder: Path, ca: str) -> Iterator[Candidate]:
    """Run a command, in which ``{port}`` stands for its port, until it is no longer wanted.

    Raises:
        RuntimeError: it does not listen; the message has its output.
    """
    [port] = free_ports(1)
    log = folder / f"{name}.log"
    process = spawn(name, [each.format(port=port) for each in command], log, environment())
    try:
        if not holds_within(lambda: _listens(port), START_SECONDS):
            raise RuntimeError(f"{name} does not listen on port {port}:\n{tail(log)}")
        yield Candidate(name, port, ca, process.pid)
    finally:
        end([process])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
