"""``gpu-share bundle``: reads every part with the rights of its user, several at once, and writes the archive.

That is parts of bounded size in a tar.gz, and an index with a line for each, also for those that failed.
"""

import argparse
import io
import json
import os
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from gpushare.defaults import SYSTEM_NAMESPACE
from gpushare.errors import ClusterError, ConfigError, GpuShareError
from gpushare.kube_client import KubeClient
from gpushare.version import installed
from gpushare_cli import node_status
from gpushare_cli.bundle.arguments import INDEX
from gpushare_cli.bundle.parts import MAX_PART, Part, Source, read, tasks
from gpushare_cli.enforcer_pods import AT_ONCE
from gpushare_cli.lookups import release_namespace
from gpushare_cli.terminal import FINE, warn
from gpushare_cli.words import counted

MAX_TOTAL: Final = 256 * 1024 * 1024
"""Bytes before compression: of one part, and of all."""
MODE: Final = 0o600
"""It names pods, nodes and namespaces: for its owner alone."""


@dataclass(slots=True)
class Archive:
    """A tar.gz that is being written; leaving the context writes the index, or removes the file where it failed.

    Args:
        file: where it is written; it must not be there yet.
        about: what the first line of the index says.

    Raises:
        ConfigError: the file is there already.
        OSError: it cannot be written.
    """

    file: Path
    about: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)
    _size: int = 0
    _tar: tarfile.TarFile = field(init=False)
    _stream: io.BufferedWriter = field(init=False)

    def __enter__(self) -> Self:
        """Create the file."""
        try:
            self._stream = os.fdopen(os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "wb")
        except FileExistsError:
            raise ConfigError(f"{self.file} exists already; name another file with --to FILE") from None
        self._tar = tarfile.open(fileobj=self._stream, mode="w:gz")
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None) -> None:
        """Write the index and close the file."""
        try:
            if kind is None:
                rows = [json.dumps(line) for line in (self.about, *self.lines)]
                self._write(INDEX, "".join(f"{row}\n" for row in rows).encode())
            self._tar.close()
            self._stream.close()
        except OSError:
            self.file.unlink(missing_ok=True)
            raise
        if kind is not None:
            self.file.unlink(missing_ok=True)

    def add(self, part: Part) -> None:
        """Add a part, or the line that says why it is missing."""
        room = min(MAX_PART, MAX_TOTAL - self._size)
        data, error = part.data[:room], part.error
        if len(part.data) > room:
            error = f"cut at {room} of {len(part.data)} bytes" + (f"; {error}" if error else "")
        if data:
            self._write(part.name, data)
        self._size += len(data)
        self.lines.append({"file": part.name, "bytes": len(data), "error": error})

    def _write(self, name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{self.file.name.partition('.')[0]}/{name}")
        entry.size, entry.mode, entry.mtime = len(data), MODE, int(time.time())
        self._tar.addfile(entry, io.BytesIO(data))


def run(args: argparse.Namespace) -> int:
    """Write the archive, and name the parts that are missing. Returns 0 once it is written, as far as could be read."""
    api = KubeClient.connect(args.kubeconfig, args.context)
    ends = time.monotonic() + args.timeout
    made = node_status.now()
    namespace = SYSTEM_NAMESPACE
    with suppress(ClusterError):  # who may not look for it learns so from the parts
        namespace = release_namespace(api)
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
