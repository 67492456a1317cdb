"""The options of ``gpu-share migrate``."""

import argparse
from typing import Any, Final

from gpushare import contract
from gpushare.errors import QuantityError
from gpushare.quantity import MAX_MIB, parse_memory, quoted
from gpushare_cli.options import add_manifests

_DESCRIPTION: Final = f"""\
Rewrite what the pods of a manifest ask of another GPU system into annotations of gpu-share: of HAMi, Volcano vGPU,
vgpu-manager, KAI, Run:ai, gpushare (Aliyun), GPUManager (Tencent), AWS virtual GPU, nos, NVIDIA time slicing and MPS,
or KubeShare. Comments and the order of lines stay; whole GPUs and everything else come out exactly as they went in.

For each object, standard error says what was read, what was written, and what has no equivalent. What cannot be
converted without guessing is refused: migrate then writes no output and lists all problems of all pods.

  gpu-share migrate -f old.yaml --diff
  gpu-share migrate -f old.yaml --card 80Gi > new.yaml
  gpu-share migrate -R -f manifests/ --unit aliyun.com/gpu-mem=1Gi --check

A pod asks for a share by {contract.MEMORY} afterwards; its namespace has to opt in.
"""


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_manifests(parser)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--diff", action="store_true", help="write a unified diff of the manifests instead of them")
    what = "write no manifest; exit code 1 if a pod asks another system for a share"
    one.add_argument("--check", action="store_true", help=what)
    what = "memory that gpu-share offers of one GPU, for fields that ask for a part of a GPU, for example 80Gi"
    parser.add_argument("--card", type=_memory, metavar="MEMORY", help=what)
    what = "memory that 1 of a resource is, as its device plugin is configured (default: 1Mi, gpu-manager 256Mi)"
    parser.add_argument("--unit", type=_unit, metavar="RESOURCE=MEMORY", action="append", default=[], help=what)
    what = "the resource is a replica of a GPU (time slicing or MPS), and a GPU has so many of them"
    parser.add_argument("--replicas", type=_replicas, metavar="RESOURCE=N", action="append", default=[], help=what)
    what = "the replicas are by MPS: each has its part of the compute as well"
    parser.add_argument("--mps", action="store_true", help=what)
    what = "path of the pod template in objects that are not built-in workloads, for example spec.tasks[*].template"
    parser.add_argument("--pod-at", metavar="PATH", action="append", default=[], help=what)
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="of a diff")


def _memory(text: str) -> int:
    try:
        return parse_memory(text)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _unit(text: str) -> tuple[str, int]:
    resource, _, memory = text.partition("=")
    return resource, _memory(memory)


def _replicas(text: str) -> tuple[str, int]:
    resource, _, number = text.partition("=")
    if not (resource and number.isdecimal() and 1 < int(number[:9]) < MAX_MIB):
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a number of replicas; write for example nvidia.com/gpu=4"
        )
    return resource, int(number)
