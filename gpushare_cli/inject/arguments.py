"""The options of ``gpu-share inject``, and those that it shares with ``gpu-share explain``."""

import argparse
from typing import Any, Final

from gpushare import contract
from gpushare_cli.options import add_manifests

_DESCRIPTION: Final = f"""\
Rewrite pods that request a share of a GPU, in all objects of a manifest: Pods, Deployments, StatefulSets,
DaemonSets, ReplicaSets, Jobs, CronJobs, lists of them; with --pod-at in objects of other APIs as well. Everything
else comes out exactly as it went in.

Namespace documents in the input set the defaults and maximums of their pods. If a pod is denied, inject writes no
output and lists all problems of all pods, each with document and field.

  gpu-share inject -f app.yaml | kubectl apply -f -
  helm template . | gpu-share inject -f - -o diff
  gpu-share inject -R -f manifests/ -f more.yaml

The webhook's settings are those of the GPU_SHARE_* variables of this command's environment, as the chart writes them,
for example GPU_SHARE_MAX_MEMORY=16Gi.

A pod requests a share by its annotations, for example {contract.MEMORY}: 4Gi and {contract.COMPUTE}: 25%.
"""


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_manifests(parser)
    what = "output format (default: the format of each input document)"
    parser.add_argument("-o", "--output", choices=("yaml", "json", "patch", "diff"), help=what)
    what = "path of the pod template in objects of other APIs, for example spec.workerGroupSpecs[*].template"
    parser.add_argument("--pod-at", metavar="PATH", action="append", default=[], help=what)
    what = "add the ResourceClaimTemplates that the pods reference"
    parser.add_argument("--templates", action="store_true", help=what)
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="of a diff")
    add_policy_options(parser)


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Add what a decision depends on besides the pod and the operator's settings, which are in the environment."""
    parser.add_argument("-n", "--namespace", metavar="NAME", help="namespace of pods without metadata.namespace")
    what = "file with Namespace objects; their annotations set the policy for their pods"
    parser.add_argument("--namespaces", metavar="FILE", action="append", default=[], help=what)
