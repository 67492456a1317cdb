"""Images made by hand: a docker archive of one layer with busybox, enough for pause containers and small tenants."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

BUSYBOX_IMAGE: Final = "gpu-share-bed/busybox:1"
FOREVER: Final = ("/bin/busybox", "sleep", "2147483647")


Entry = tuple[bytes, dict[str, Any], bytes]
"""An image: its configuration, its part of the manifest, its layer."""


def busybox(target: Path, program: Path, images: Mapping[str, Sequence[str]]) -> Path:
    """Write an archive with one layer for all ``images`` (name: entrypoint) around a static busybox."""
    layer = busybox_layer(program)
    settings = {name: {"Entrypoint": list(entrypoint), "Env": ["PATH=/bin"]} for name, entrypoint in images.items()}
    return write(target, [entry(f"docker.io/{name}", each, layer) for name, each in settings.items()])


def write(target: Path, entries: Sequence[Entry]) -> Path:
    """Write an archive with images of one layer each; what they have in common stands in it once."""
    files = {_layer_name(layer): layer for _, _, layer in entries}
    files |= {_config_name(config): config for config, _, _ in entries}
    with tarfile.open(target, "w") as tar:
        for name, content in files.items():
            _add(tar, name, content)
        _add(tar, "manifest.json", json.dumps([manifest for _, manifest, _ in entries]).encode())
    return target


def entry(name: str, settings: Mapping[str, Any], layer: bytes) -> Entry:
    """An image of that full name; ``settings`` as Docker has them (``Entrypoint``, ``Env``)."""
    diff = "sha256:" + hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [diff]},
        "history": [{"created_by": "by hand"}],
    }
    text = json.dumps(config).encode()
    return text, {"Config": _config_name(text), "RepoTags": [name], "Layers": [_layer_name(layer)]}, layer


def _layer_name(layer: bytes) -> str:
    return hashlib.sha256(layer).hexdigest() + "/layer.tar"


def _config_name(config: bytes) -> str:
    return hashlib.sha256(config).hexdigest() + ".json"


def busybox_layer(program: Path) -> bytes:
    """A layer with a static busybox and a link for each of its programs."""
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("root", 0o700)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        _add(tar, "bin/busybox", program.read_bytes(), 0o755)
        _add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        for applet in applets:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            if applet != "busybox":
                tar.addfile(entry)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def cpio(target: Path, folder: Path) -> Path:
    """Write an initramfs with the files of ``folder`` (newc, not compressed; owned by root)."""
    entries = [_cpio_entry(str(each.relative_to(folder)), each) for each in sorted(folder.rglob("*"))]
    target.write_bytes(b"".join([*entries, _cpio_header("TRAILER!!!", 0, 0)]))
    return target


def _cpio_entry(name: str, file: Path) -> bytes:
    content = file.read_bytes() if file.is_file() else b""
    return _cpio_header(name, file.stat().st_mode, len(content)) + content + _to_four(len(content))


def _cpio_header(name: str, mode: int, size: int) -> bytes:
    """Header of cpio(5)'s "new ASCII format": thirteen numbers of eight hexadecimal digits, and the name."""
    fields = (0, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name) + 1, 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return header + _to_four(len(header))


def _to_four(length: int) -> bytes:
    return b"\0" * (-length % 4)
