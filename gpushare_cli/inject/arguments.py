"""The options of ``gpu-share inject``, and those that it shares with ``gpu-share explain``."""

import argparse
from typing import Any, Final

from gpushare import contract
from gpushare_cli.options import add_manifests
from webhook.mutation.settings import ACROSS_NODES

_DESCRIPTION: Final = f"""\
Rewrite pods that request a share of a GPU, in all objects of a manifest: Pods, Deployments, StatefulSets,
DaemonSets, ReplicaSets, Jobs, CronJobs, lists of them; with --pod-at in objects of other APIs as well. Everything
else comes out exactly as it went in.

Namespace documents in the input set the defaults and maximums of their pods. If a pod is denied, inject writes no
output and lists all problems of all pods, each with document and field.

  gpu-share inject -f app.yaml | kubectl apply -f -
  helm template . | gpu-share inject -f - -o diff
  gpu-share inject -R -f manifests/ -f more.yaml

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
    """Add what a decision depends on besides the pod: the namespace, and the operator's settings."""
    parser.add_argument("-n", "--namespace", metavar="NAME", help="namespace of pods without metadata.namespace")
    what = "file with Namespace objects; their annotations set the policy for their pods"
    parser.add_argument("--namespaces", metavar="FILE", action="append", default=[], help=what)
    what = "the webhook's setting of this name (default: the GPU_SHARE_* variables of this command's environment)"
    group = parser.add_argument_group("settings", what)
    group.add_argument("--image", help="image of the sidecar")
    group.add_argument("--min-memory", metavar="QUANTITY", help="smallest share")
    group.add_argument("--max-memory", metavar="QUANTITY", help="largest share")
    group.add_argument("--runtime-class", metavar="NAME", help="runtimeClassName of sharing pods")
    what = "whether a container may request several GPUs"
    group.add_argument("--several-gpus", choices=("allow", "refuse"), help=what)
    what = "whether pods with a share may run as root"
    group.add_argument("--root-tenants", choices=("allow", "isolate", "refuse"), help=what)
    group.add_argument("--scheduler-name", metavar="NAME", action="append", help="profile of Kubernetes' scheduler")
    what = "nodes that the scheduler prefers for pods with a share"
    group.add_argument("--across-nodes", choices=ACROSS_NODES, help=what)
