"""Programs from Debian packages that are not installed here: fetched from the mirror this machine already uses.

apt works with folders of our own; nothing is installed and no setting of the machine is changed.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

TIMEOUT: Final = 300
TOOLS: Final = ("apt-get", "dpkg", "dpkg-deb")


class PackagesUnobtainableError(RuntimeError):
    """Packages cannot be fetched; the message says which and why."""


def download(
    packages: Sequence[str], scratch: Path, *, component: str = "main", suite: str = "", dependencies: bool = False
) -> None:
    """Fetch packages as ``*.deb`` files into ``scratch``, an empty folder.

    Args:
        packages: names.
        scratch: where apt's own folders are made as well.
        component: ``main`` or ``non-free``.
        suite: of Debian's archive, such as ``trixie``; those of this machine when empty.
        dependencies: also fetch what they need and this machine has not installed, without recommendations.

    Raises:
        PackagesUnobtainableError: this is no Debian, or its mirror cannot be reached.
    """
    what = ", ".join(packages)
    if lacking := [tool for tool in TOOLS if not shutil.which(tool)]:
        raise PackagesUnobtainableError(f"{what}: comes from Debian packages; {', '.join(lacking)} is missing")
    flags = _own_folders(scratch, component, suite)
    if flags is None:
        raise PackagesUnobtainableError(f"{what}: no Debian mirror among this machine's apt sources")
    _run(what, "apt-get", *flags, "-qq", "update")
    if dependencies:
        how = ["--yes", "--no-install-recommends", "--reinstall", "--download-only", "install"]
        _run(what, "apt-get", *flags, "-qq", *how, *packages)
        for package in (scratch / "cache" / "archives").glob("*.deb"):
            package.rename(scratch / package.name)
    else:
        _run(what, "apt-get", *flags, "-qq", "download", *packages, folder=scratch)


def unpack(scratch: Path, target: Path) -> None:
    """Unpack every package of ``scratch`` into one tree."""
    for package in sorted(scratch.glob("*.deb")):
        _run(package.name, "dpkg", "-x", str(package), str(target))


def place(tree: Path, home: Path) -> None:
    """Move a finished tree to its place in the cache, unless another process put the same there first."""
    with suppress(OSError):
        tree.rename(home)
    if not home.is_dir():
        raise PackagesUnobtainableError(f"{home} cannot be made")


def version(scratch: Path, package: str) -> str:
    """Version of a downloaded package."""
    file = next(iter(scratch.glob(f"{package}_*.deb")))
    return _run(package, "dpkg-deb", "--field", str(file), "Version").strip()


def first_dependency(scratch: Path, package: str) -> str:
    """First package that a downloaded package depends on: what a metapackage stands for."""
    file = next(iter(scratch.glob(f"{package}_*.deb")))
    return re.split(r"[\s,|(]", _run(package, "dpkg-deb", "--field", str(file), "Depends").strip())[0]


def mirror() -> tuple[str, str]:
    """Return (URI, suite) of the first Debian archive among apt's sources. Raises PackagesUnobtainableError."""
    for uri, suites, _ in debian_sources(_apt_sources()):
        return uri, suites.split()[0]
    raise PackagesUnobtainableError("no Debian mirror among this machine's apt sources")


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


def _own_folders(scratch: Path, component: str, suite: str) -> list[str] | None:
    found = list(debian_sources(_apt_sources()))
    if suite:
        found = [(uri, suite, keyring) for uri, _, keyring in found[:1]]
    sources = "\n".join(_stanza(*entry, component) for entry in found)
    (scratch / "own.sources").write_text(sources)
    for folder in "lists/partial", "cache/archives/partial":
        (scratch / folder).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": scratch / "own.sources", "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": scratch / "lists", "Dir::Cache": scratch / "cache", "APT::Sandbox::User": "",
        "Debug::NoLocking": 1, "Acquire::Languages": "none", "Acquire::Retries": 2, "Acquire::http::Timeout": 20,
    }  # fmt: skip
    return [flag for key, value in options.items() for flag in ("-o", f"{key}={value}")] if sources else None


def _run(what: str, *command: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PackagesUnobtainableError(f"{what} cannot be fetched: {error}") from error
    if done.returncode != 0:
        message = done.stderr.strip() or done.stdout.strip()
        raise PackagesUnobtainableError(f"{what} cannot be fetched: {command[0]}: {message}")
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


def _is_debian(uri: str) -> bool:
    return re.search(r"/debian(-security)?/?$", uri.split(maxsplit=1)[0] if uri else "") is not None


def _stanza(uri: str, suites: str, keyring: str, component: str) -> str:
    signed = f"Signed-By: {keyring}\n" if keyring else ""
    return f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: {component}\n{signed}"
