"""Fetches the real ``nvidia-cuda-mps-control``: it answers its whole protocol without a GPU, so tests can ask it.

It is NVIDIA's and not ours to pass on, so it is never committed and never in an image: Debian's non-free package is
downloaded from the mirror this machine already uses, with apt folders of our own, and unpacked into the user's cache.
Nothing is installed, no setting of the machine is changed. ``python -m tests.fakegpu.mps_binary`` prints where it is.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.need import missing

PACKAGE: Final = "nvidia-cuda-mps"
PROGRAM: Final = "nvidia-cuda-mps-control"
ENV: Final = "GPU_SHARE_MPS_CONTROL"
"""Path of a binary to use instead of fetching one."""
CACHE: Final = Path.home() / ".cache" / "gpu-share"
TIMEOUT: Final = 240


class MpsUnobtainableError(RuntimeError):
    """The binary is not here and cannot be fetched; the message says why."""


def mps_control() -> Path:
    """The real control binary, fetched on first use.

    Raises:
        MpsUnobtainableError: this is no Debian, or its mirror cannot be reached.
    """
    if os.environ.get(ENV):
        return Path(os.environ[ENV])
    found = shutil.which(PROGRAM) or next(iter(sorted(CACHE.glob(f"{PACKAGE}-*/**/{PROGRAM}"))), None)
    return Path(found) if found else _fetch()


def need_mps_control() -> Path:
    """``mps_control`` for tests: skipped with the reason where it cannot be had, failed in CI."""
    try:
        return mps_control()
    except MpsUnobtainableError as error:
        missing(str(error))


def _fetch() -> Path:
    tools = [tool for tool in ("apt-get", "dpkg", "dpkg-deb") if not shutil.which(tool)]
    if tools:
        raise MpsUnobtainableError(
            f"{PROGRAM} comes from a Debian package; {', '.join(tools)} is missing (or set {ENV})"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        package = _download(Path(scratch))
        version = _run("dpkg-deb", "--field", str(package), "Version").strip()
        unpacked = Path(scratch) / "unpacked"
        _run("dpkg", "-x", str(package), str(unpacked))
        home = CACHE / f"{PACKAGE}-{version}"
        if not home.exists():
            unpacked.rename(home)
    return next(iter(home.glob(f"**/{PROGRAM}")))


def _download(scratch: Path) -> Path:
    """Download the package with apt folders of our own; returns the file."""
    sources = scratch / "own.sources"
    sources.write_text("\n".join(_stanza(*entry) for entry in debian_sources(_apt_sources())))
    if not sources.read_text():
        raise MpsUnobtainableError(
            f"no Debian mirror among this machine's apt sources to fetch {PACKAGE} from (or set {ENV})"
        )
    for folder in "lists/partial", "cache/archives/partial":
        (scratch / folder).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "-", "Dir::State::lists": scratch / "lists",
        "Dir::Cache": scratch / "cache", "APT::Sandbox::User": "", "Acquire::Languages": "none",
        "Acquire::Retries": 2, "Acquire::http::Timeout": 20,
    }  # fmt: skip
    flags = [flag for key, value in options.items() for flag in ("-o", f"{key}={value}")]
    _run("apt-get", *flags, "-qq", "update")
    _run("apt-get", *flags, "-qq", "download", PACKAGE, folder=scratch)
    return next(iter(scratch.glob(f"{PACKAGE}_*.deb")))


def _run(*command: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsUnobtainableError(f"{PACKAGE} cannot be fetched: {error}") from error
    if done.returncode != 0:
        raise MpsUnobtainableError(
            f"{PACKAGE} cannot be fetched: {command[0]}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def _apt_sources() -> str:
    """Everything apt reads here: one-line files as they are, deb822 files with a blank line between stanzas."""
    etc = Path("/etc/apt")
    files = [
        etc / "sources.list",
        *sorted((etc / "sources.list.d").glob("*.list")),
        *sorted((etc / "sources.list.d").glob("*.sources")),
    ]
    return "\n\n".join(file.read_text() for file in files if file.is_file())


def debian_sources(text: str) -> Iterator[tuple[str, str, str]]:
    """The (URI, suites, keyring) of Debian's own archives among apt's sources in either format."""
    for line in re.finditer(r"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.*)$", text, re.MULTILINE):
        keyring = re.search(r"signed-by=(\S+)", line[1] or "")
        if _is_debian(line[2]) and "main" in line[4].split():
            yield line[2], line[3], keyring[1] if keyring else ""
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
        if "main" in fields.get("Components", "").split() and _is_debian(fields.get("URIs", "")):
            yield fields["URIs"], fields.get("Suites", ""), fields.get("Signed-By", "")


def _is_debian(uri: str) -> bool:
    return re.search(r"/debian(-security)?/?$", uri.split(maxsplit=1)[0] if uri else "") is not None


def _stanza(uri: str, suites: str, keyring: str) -> str:
    signed = f"Signed-By: {keyring}\n" if keyring else ""
    return f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: non-free\n{signed}"


if __name__ == "__main__":
    try:
        print(mps_control())
    except MpsUnobtainableError as missing_binary:
        sys.exit(str(missing_binary))
