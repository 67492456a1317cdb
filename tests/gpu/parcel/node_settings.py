"""Settings of containerd and the kubelet on a machine of which as little as possible is asked."""

import json
import os
from pathlib import Path
from typing import Any, Final

import yaml

from tests.gpu.parcel import image
from tests.gpu.parcel.layout import ADDRESS, BINARIES, NODE
from tests.testbed.cluster import node_files

KUBELET_PORT: Final = 10350
"""The webhook, which is on the node's network here, has the usual one."""
CONTAINERD: Final = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[plugins.'io.containerd.cri.v1.images']
snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
cdi_spec_dirs = ["/var/run/cdi"]
restrict_oom_score_adj = true
stats_collect_period = "10m"
stats_retention_period = "20m"
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/var/lib/cni/bin"]
conf_dir = "/var/lib/cni/net.d"
use_internal_loopback = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "/var/lib/containerd/base.json"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false

[plugins.'io.containerd.internal.v1.opt']
path = "/var/lib/containerd/opt"
"""
NO_NETWORK: Final = """\
#!/bin/sh
# A pod gets loopback and an address that stands for it; nothing leads there.
case "$CNI_COMMAND" in
ADD)
  first=${CNI_CONTAINERID%"${CNI_CONTAINERID#??}"}; rest=${CNI_CONTAINERID#??}; second=${rest%"${rest#??}"}
  printf '{"cniVersion":"1.0.0","interfaces":[{"name":"%s","sandbox":"%s"}],' "$CNI_IFNAME" "$CNI_NETNS"
  printf '"ips":[{"interface":0,"address":"10.1.%d.%d/32"}]}' "0x$first" "0x$second" ;;
VERSION) printf '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
esac
"""


def write(home: Path, keys: Path, parcel: Path) -> None:
    """Write all settings below ``home``, which the node sees as ``/var`` and ``/run``."""
    node_files.lay_out(home)
    lib = home / "var" / "lib"
    runc = parcel / BINARIES / "runc"
    (lib / "containerd" / "config.toml").write_text(CONTAINERD.format(pause=image.PAUSE, runc=runc))
    (lib / "cni" / "bin").mkdir()
    plugin = lib / "cni" / "bin" / "no-network"
    plugin.write_text(NO_NETWORK)
    plugin.chmod(0o755)
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": plugin.name}]}
    (lib / "cni" / "net.d" / "10-pods.conflist").write_text(json.dumps(network))
    (lib / "kubelet" / "resolv.conf").write_text("search invalid\n")
    settings = {**node_files.kubelet(ADDRESS, keys, NODE), "port": KUBELET_PORT, "imageGCHighThresholdPercent": 100}
    (lib / "kubelet" / "config.yaml").write_text(yaml.safe_dump(settings))


def toolkit(uuids: list[str]) -> dict[str, Any]:
    """A CDI specification as NVIDIA's toolkit writes it, but of device files alone: containers have the rest."""
    every = sorted(str(each) for each in Path("/dev").glob("nvidia*") if each.is_char_device())
    edits = {"deviceNodes": [{"path": each} for each in every]}
    devices = [{"name": uuid, "containerEdits": edits} for uuid in uuids]
    return {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}


def programs(folder: Path, python: Path, frameworks: Path) -> None:
    """Write the programs that images name as their entry points, and a ``python`` that has the frameworks."""
    folder.mkdir(exist_ok=True)
    site = f"PYTHONPATH=/gpu-share/product:/gpu-share/site exec {python}"
    main = "import sys; from gpushare_cli.main import main; sys.argv[0] = 'gpu-share'; sys.exit(main())"
    texts = {
        "gpu-share": f'#!/bin/sh\n{site} -c "{main}" "$@"\n',
        "gpu-share-simulator": f'#!/bin/sh\n{site} -m tests.fakes.gpu.node "$@"\n',
        **dict.fromkeys(("python", "python3"), f'#!/bin/sh\nexec {frameworks} "$@"\n'),
        "gpu-share-tenant": f'#!/bin/sh\n{site} -m tests.fakes.gpu.share "$@"\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        os.chmod(folder / name, 0o755)  # noqa: PTH101 - beside the write
