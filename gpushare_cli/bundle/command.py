"""``gpu-share bundle``: reads every part with the rights of its user, several at once, and writes the archive."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from gpushare.defaults import SYSTEM_NAMESPACE
from gpushare.errors import ClusterError, GpuShareError
from gpushare.kube_client import KubeClient
from gpushare.version import installed
from gpushare_cli import node_status
from gpushare_cli.bundle.archive import INDEX, Archive
from gpushare_cli.bundle.parts import Source, read, tasks
from gpushare_cli.enforcer_pods import AT_ONCE
from gpushare_cli.exit_codes import FINE
from gpushare_cli.lookups import release_namespace
from gpushare_cli.terminal import warn
from gpushare_cli.words import counted


def run(args: argparse.Namespace) -> int:
    """Write the archive, and name the parts that are missing. Returns 0 once it is written, as far as could be read."""
    api = KubeClient.connect(args.kubeconfig, args.context)
    ends = time.monotonic() + args.timeout
    made = node_status.now()
    namespace = _namespace(api)
    source = Source(api=api, namespace=namespace, connection=(args.kubeconfig, args.context), ends=ends)
    file = args.to or Path(f"gpu-share-bundle-{made:%Y%m%dT%H%M%SZ}.tar.gz")
    about = {"bundle": 1, "time": made.isoformat(), "commandLine": installed(), "namespace": namespace}
    try:
        with Archive(file, about) as archive, ThreadPoolExecutor(AT_ONCE) as pool:
            for part in pool.map(partial(read, source), tasks(source)):
                archive.add(part)
    except OSError as error:
        raise GpuShareError(f"--to {file}: {error.strerror}; name a file that can be written") from None
    failed = [line for line in archive.lines if line["error"]]
    for line in failed:
        warn(f"{line['file']}: {line['error']}")
    whole = counted(len(archive.lines) - len(failed), "complete part")
    print(f"{archive.file}: {whole}, {len(failed)} missing or incomplete ({INDEX} lists them)")
    return FINE


def _namespace(api: KubeClient) -> str:
    """Return the namespace of the release; the usual one where the user may not look for it."""
    try:
        return release_namespace(api) or SYSTEM_NAMESPACE
    except ClusterError:  # the parts say why
        return SYSTEM_NAMESPACE
