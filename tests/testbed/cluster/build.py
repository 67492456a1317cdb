"""Build the servers from the Go modules in ``modules/`` into the cache.

Safe to interrupt (a binary appears whole or not at all) and to run twice at once (a lock; the second waits and finds
everything built). Kubernetes cannot be had by ``go install``: its go.mod carries ``replace`` lines, hence own modules.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.testbed.cluster.binaries import (
    ASSETS_VARIABLE,
    CONTAINERD,
    CONTAINERD_PACKAGE,
    HELM,
    MODULES,
    OLDER_CONTAINERD,
    PROMETHEUS,
    Binary,
    Group,
    cache_root,
    find,
    wanted,
)
from tests.testbed.cluster.errors import BedError

GO_OLDEST: Final = (1, 26)
USUAL_GO: Final = "/usr/local/go/bin/go"
PROGRESS_SECONDS: Final = 15.0
VERSION_PACKAGE: Final = "k8s.io/component-base/version"
FLAGS: Final = {
    "etcd": "-s -w",
    "containerd": f"-s -w -X {CONTAINERD_PACKAGE}/version.Version=v{CONTAINERD}",
    "containerd-2.1": f"-s -w -X {CONTAINERD_PACKAGE}/version.Version=v{OLDER_CONTAINERD}",
    "helm": f"-s -w -X helm.sh/helm/v4/internal/version.version=v{HELM}",
    "prometheus": f"-s -w -X github.com/prometheus/common/version.Version={PROMETHEUS}",
}
LEAST: Final = "no_btrfs no_zfs no_devmapper"
"""Leaves out of containerd what needs C or devices."""
TAGS: Final = {"containerd": LEAST, "containerd-2.1": LEAST, "prometheus": "remove_all_sd"}
Say = Callable[[str], None]


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


def build_missing(say: Say = say, groups: Sequence[Group] = (Group.CONTROL_PLANE,)) -> None:
    """Build what is neither given nor cached.

    Raises:
        BedError: Go is missing or too old, or a build failed (with the end of its output).
    """
    if not _missing(groups):
        return
    go = find_go()
    with lock("build", say):
        missing = _missing(groups)
        for number, binary in enumerate(missing, 1):
            _build(go, binary, f"({number}/{len(missing)})", say)


def _missing(groups: Sequence[Group]) -> list[Binary]:
    every = dict.fromkeys(binary for group in groups for binary in wanted(group))
    return [binary for binary in every if find(binary) is None]


def find_go() -> str:
    """Path of a Go that is new enough. Raises ``BedError`` that says what to install."""
    way_out = (
        f"install Go {GO_OLDEST[0]}.{GO_OLDEST[1]} or newer (https://go.dev/dl, unpacked to /usr/local/go) "
        f"or set {ASSETS_VARIABLE} to a folder with kube-apiserver, kube-scheduler, kube-controller-manager and etcd"
    )
    go = shutil.which("go") or (USUAL_GO if os.access(USUAL_GO, os.X_OK) else None)
    if go is None:
        raise BedError(f"Kubernetes has to be built and there is no Go: {way_out}")
    output = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=_env(), check=False).stdout
    match = re.match(r"go(\d+)\.(\d+)", output)
    if not match or (int(match[1]), int(match[2])) < GO_OLDEST:
        raise BedError(f"{go} is {output.strip() or 'of unknown version'}, too old for Kubernetes: {way_out}")
    return go


def _build(go: str, binary: Binary, count: str, say: Say) -> None:
    binary.cache.parent.mkdir(parents=True, exist_ok=True)
    for stale in binary.cache.parent.glob(f"{binary.name}.*.tmp"):
        stale.unlink(missing_ok=True)
    target = binary.cache.with_name(f"{binary.name}.{os.getpid()}.tmp")
    tags, flags = TAGS.get(binary.module, ""), FLAGS.get(binary.module) or _kubernetes_flags(binary.version)
    command = [go, "build", "-trimpath", f"-tags={tags}", "-ldflags", flags, "-o", str(target), binary.package]
    label = f"building {binary.name} {count} ..."
    say(label)
    started = time.monotonic()
    try:
        _run(command, MODULES / binary.module, lambda: say(f"{label} {time.monotonic() - started:.0f} s"))
        target.rename(binary.cache)
    finally:
        target.unlink(missing_ok=True)
    say(f"built {binary.name} {count} in {time.monotonic() - started:.0f} s")


def _kubernetes_flags(version: str) -> str:
    """Without them the servers take themselves for v0.0.0-master."""
    major, minor, _ = version.split(".")
    fields = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(("-s -w", *(f"-X {VERSION_PACKAGE}.{name}={value}" for name, value in fields.items())))


def _run(command: list[str], folder: Path, progress: Callable[[], None]) -> None:
    with subprocess.Popen(
        command, cwd=folder, env=_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            output = _wait(running, progress)
        except BaseException:
            running.terminate()
            raise
    if running.returncode:
        raise BedError(f"{' '.join(command[:2])} {command[-1]} failed ({running.returncode}):\n{output[-3000:]}")


def _wait(running: subprocess.Popen[str], progress: Callable[[], None]) -> str:
    while True:
        try:
            return running.communicate(timeout=PROGRESS_SECONDS)[0]
        except subprocess.TimeoutExpired:
            progress()


def _env() -> dict[str, str]:
    """The user's Go settings (proxy, caches), static binaries, and the Go that is there rather than a fetched one."""
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}


@contextmanager
def lock(name: str, say: Say = say) -> Iterator[None]:
    """Let one at a time work on a part of the cache; the others wait and say so."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        build_missing()
    except BedError as error:
        sys.exit(str(error))
