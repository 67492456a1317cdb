"""The product's programs as command lines: the one place of these tests that knows their options."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.patience import patient

SECRET: Final = "gpu-share-webhook-tls"
SYSTEM: Final = "gpu-share-system"
ROOT: Final = Path(__file__).parents[3]
PRODUCT: Final = (sys.executable, "-m", "gpushare_cli")


def balancer(port: int, backends: Sequence[int]) -> list[str]:
    """What stands for the webhook's Service."""
    return [sys.executable, "-m", "tests.integration.controlplane.balancer", str(port), *map(str, backends)]


def webhook(
    port: int, admin_port: int, kubeconfig: Path, tls: Path, retention: int
) -> tuple[list[str], dict[str, str]]:
    """One replica of the webhook. Returns its command line and environment."""
    command = [*PRODUCT, "webhook", f"--bind=127.0.0.1:{port}", f"--admin=127.0.0.1:{admin_port}"]
    command += [f"--certs={tls}", f"--kubeconfig={kubeconfig}", f"--retention={retention}"]
    return command, environment()


def enforcer(node: str, kubeconfig: Path, folder: Path, poll: float, kubelet: Path | None = None) -> list[str]:
    """One node's enforcer, without MPS daemons: simulated GPUs have no server to run.

    Args:
        node: its name.
        kubeconfig: its identity.
        folder: for what it keeps.
        poll: seconds between looks.
        kubelet: root directory of a kubelet to serve; ``None``: there is none.
    """
    command = [
        *PRODUCT,
        "enforcer",
        f"--node={node}",
        f"--kubeconfig={kubeconfig}",
        f"--poll-seconds={poll}",
        "--no-mps",
    ]
    command += [f"--state={folder / 'state'}", f"--run={folder / 'run'}"]
    return [
        *command,
        f"--kubelet-root={kubelet or folder / 'kubelet'}",
        *(["--no-dra"] if kubelet is None else [f"--cdi-root={folder / 'cdi'}"]),
    ]


def certs(kubeconfig: Path, log: Path) -> None:
    """Run ``gpu-share certs`` once, as the Deployment does again and again."""
    secret = f"--secret={SYSTEM}/{SECRET}"
    options = [secret, "--webhook-configuration=gpu-share", "--ip=127.0.0.1", f"--kubeconfig={kubeconfig}"]
    run([*PRODUCT, "certs", *options], log)


def environment(**extra: str) -> dict[str, str]:
    """This process's environment with the checkout importable."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **extra}


def run(command: Sequence[str], log: Path, seconds: float = 60) -> None:
    """Run a program to its end; a failure shows its output."""
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=patient(seconds), check=False
    )
    log.write_text(done.stdout + done.stderr)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
