"""Measures what the design assumes about NVIDIA's driver and MPS, on one GPU or on the simulated one.

    python tests/gpu/run.py doctor            what can be measured here, and what is missing
    python tests/gpu/run.py core              the experiments, in at most 9 minutes
    python tests/gpu/run.py bench             the benchmarks, in at most 9 minutes
    python tests/gpu/run.py all               both; h1, h2, ...: one of them
    python tests/gpu/run.py report            docs/design/hardware.md from the results in tests/gpu/results
    python tests/gpu/run.py cluster           the whole product in a cluster of its own, from make gpu-parcel

It needs Python 3.11, the driver and nvidia-ml-py, and no network. Started again it does what is missing. Nothing of
the GPU is changed unless --allow-mode-change is given. Its one result is the tar it names at the end.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / ".build" / "gpu-site"
"""Where ``pip install --target`` may have put nvidia-ml-py for a machine that has none."""


def main(argv: Sequence[str]) -> int:
    """Run; exit status 0: as asked, 1: something is missing or went wrong, 2: it cannot be done at all."""
    sys.path[:0] = [str(ROOT)]
    sys.path.append(str(SITE))
    if argv[:1] == ["cluster"]:
        from tests.gpu.parcel import run  # noqa: PLC0415 - after the path is set

        return run.main(argv[1:])
    try:
        from tests.gpu.kit import standins  # noqa: PLC0415 - nothing of ours can be imported before the path is set

        standins.ensure()
        from tests.gpu.kit import command  # noqa: PLC0415
    except ModuleNotFoundError as error:
        wanted = {"pynvml": "nvidia-ml-py"}.get(error.name or "", error.name)
        print(f"Python has no {wanted} here: python -m pip install --no-deps --target {SITE} {wanted}", file=sys.stderr)
        return 2
    return command.main(argv, argparse.ArgumentParser(prog="run.py", description=__doc__))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
