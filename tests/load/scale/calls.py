"""What the API server was asked to write, by its own count: unlike durations, the same on any machine."""

import re
from collections import Counter
from typing import Final

import urllib3

from gpushare.kube_client import KubeClient

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
TIMEOUT: Final = 60.0


def writes(cluster: KubeClient) -> Counter[str]:
    """Writes that were asked for until now by resource, refused ones too, such as ``pods/status``; leases left out."""
    answer = cluster._send("GET", "/metrics", None, {}, urllib3.Timeout(total=TIMEOUT))
    return counted(answer.data.decode())


def counted(metrics: str) -> Counter[str]:
    """The same of the text of an API server's metrics."""
    found: Counter[str] = Counter()
    for line in metrics.splitlines():
        if line.startswith("apiserver_request_total{"):
            labels = dict(LABEL.findall(line))
            if labels["verb"] in WRITES and labels["resource"] not in {"leases", ""}:
                name = f"{labels['resource']}/{labels['subresource']}".rstrip("/")
                found[name] += int(float(line.rpartition(" ")[2]))
    return found
