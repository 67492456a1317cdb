"""Builds the product's images as anyone would, from the Dockerfile, on a machine without docker or a registry.

buildah builds them on a stand-in base that debootstrap makes: Debian's own Python, trusting what this machine trusts.
Archives are cached by the content of their sources. ``python -m tests.testbed.cluster.images`` prints their sizes.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.support import debian
from tests.testbed.cluster import packages
from tests.testbed.cluster.binaries import cache_root
from tests.testbed.cluster.build import lock, say
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.node_files import on_overlay

CONTEXT: Final = Path(__file__).parents[3]
SIMULATOR: Final = "simulator"
PRODUCT: Final = "gpu-share"
BASE_PACKAGES: Final = ("python3", "python3-venv", "ca-certificates")
BASE_RECIPE: Final = 2
"""Raise it when the base is made otherwise: part of the cache's key."""
CA_BUNDLE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "timeout", "proxy")
UPGRADED: Final = "upgraded"
"""Tag of the images that a test upgrades to."""
EARLIER: Final = "earlier"
"""Tag of the images of an earlier commit."""
KEPT: Final = 8
"""Archives of each target that stay in the cache."""
MOST_LAYERS: Final = 250
"""Layers in buildah's store, about 40 MB each, from which on it is cleared."""
PRUNED: Final = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
JUNK: Final = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*_cache")


def image(target: str = PRODUCT, tag: str = "", say: Callable[[str], None] = say, source: Path = CONTEXT) -> Path:
    """Docker archive of one target of the Dockerfile, named ``gpu-share:<tag>`` or ``gpu-share-simulator:<tag>``.

    Args:
        target: ``gpu-share`` or ``simulator``.
        tag: the project's version when empty.
        say: where progress goes.
        source: the checkout that it is built from.

    Raises:
        BedError: it cannot be built; the message ends with what the build said.
    """
    tag = tag or version()
    with tempfile.TemporaryDirectory() as folder, lock("images", say):
        context = Path(folder)
        _copy_context(source, context)
        file = _home() / f"{target}-{tag}-{_digest(context, target, tag, _base_name())}.tar"
        if not file.is_file():
            _shrink_store(say)
            base(say)
            _build(context, target, f"{name(target)}:{tag}", file, say)
            _forget_old(target)
        os.utime(file)
    return file


def targets() -> list[str]:
    """The Dockerfile's targets that are images, the product's first."""
    return [PRODUCT, *([SIMULATOR] if SIMULATOR in _stages(CONTEXT) else [])]


def name(target: str) -> str:
    """Repository name of a target's image."""
    return PRODUCT if target == PRODUCT else f"{PRODUCT}-{target}"


def version() -> str:
    """Version of the project, which is the images' tag."""
    return str(tomllib.loads((CONTEXT / "pyproject.toml").read_text())["project"]["version"])


def base(say: Callable[[str], None] = say) -> Path:
    """Root file system of the stand-in base as a tar file, also put into buildah's store. Takes a minute, once."""
    file = _home() / f"{_base_name()}.tar"
    if not file.is_file():
        _make_base(file, say)
    if not _run([*_buildah(), "images", "--quiet", "--filter", f"reference=localhost/{_base_name()}"], say).strip():
        _store_base(file, say)
    return file


def _make_base(file: Path, say: Callable[[str], None]) -> None:
    uri, suite = debian.mirror()
    say(f"making the base image from {uri} ({suite}) ...")
    _home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_home()) as folder:
        root = Path(folder) / "root"
        include = f"--include={','.join(BASE_PACKAGES)}"
        _run(["debootstrap", "--variant=minbase", include, suite, str(root), uri], say)
        _finish_base(root)
        fresh = Path(folder) / "base.tar"
        _run(["tar", "--numeric-owner", "--sort=name", "-C", str(root), "-cf", str(fresh), "."], say)
        fresh.rename(file)


def sizes(file: Path) -> tuple[float, float]:
    """MB (10^6 bytes) of an image, unpacked layers: all of it, and without its base."""
    return file.stat().st_size / 1e6, (file.stat().st_size - base().stat().st_size) / 1e6


def _finish_base(root: Path) -> None:
    """Leave out what an image needs not, and let its pip reach what this machine's pip reaches."""
    for folder in PRUNED:
        for each in (root / folder).glob("*"):
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    if CA_BUNDLE.is_file():
        shutil.copyfile(CA_BUNDLE, root / CA_BUNDLE.relative_to("/"))
    (root / "etc" / "pip.conf").write_text(_pip_conf())


def _pip_conf() -> str:
    """The machine's pip settings that hold in an image too; its CA bundle comes along, so it is named always."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    found = dict(re.findall(r"^[:\w]+\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    lines = [f"{key} = {found[key]}" for key in PIP_SETTINGS if key in found]
    return "\n".join(["[global]", f"cert = {CA_BUNDLE}", *lines]) + "\n"


def _store_base(file: Path, say: Callable[[str], None]) -> None:
    made = _run([*_buildah(), "from", "scratch"], say).split()[-1]
    _run([*_buildah(), "add", "--quiet", made, str(file), "/"], say)
    _run(
        [*_buildah(), "config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", made], say
    )
    _run([*_buildah(), "commit", "--quiet", "--rm", made, f"localhost/{_base_name()}:1"], say)


def _build(context: Path, target: str, tag: str, file: Path, say: Callable[[str], None]) -> None:
    say(f"building image {tag} ...")
    started = time.monotonic()
    what = [f"--target={target}"] if target in _stages(context) else []
    how = ["--isolation=chroot", "--network=host", "--layers", f"--build-arg=BASE=localhost/{_base_name()}:1"]
    _run([*_buildah(), "bud", "--quiet", *how, *what, "--tag", f"localhost/{tag}", str(context)], say)
    fresh = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        _run([*_buildah(), "push", "--quiet", f"localhost/{tag}", f"docker-archive:{fresh}:{tag}"], say)
        fresh.rename(file)
    finally:
        fresh.unlink(missing_ok=True)
    say(f"built image {tag} in {time.monotonic() - started:.0f} s")


def _buildah() -> list[str]:
    """Buildah with a store of our own, asking for no signatures and knowing no registry."""
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    driver = "vfs" if on_overlay(home) else "overlay"
    return ["buildah", f"--root={home}/store", f"--runroot={home}/run", f"--storage-driver={driver}"]


def _run(command: Sequence[str], say: Callable[[str], None]) -> str:
    """Run with the packages' programs and data under /usr, in a mount namespace that ends with the command."""
    tree = packages.tree(packages.IMAGE_PACKAGES, say)
    settings = _home() / "settings"
    settings.mkdir(exist_ok=True)
    (settings / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (settings / "registries.conf").write_text("")
    script = f'{packages.over_usr(tree)} && exec "$@"'
    if command[0] == "buildah" and command[4] in {"from", "commit", "bud", "push"}:
        command = [*command[:5], f"--signature-policy={settings}/policy.json", *command[5:]]
    whole = ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *command]
    env = {**os.environ, "CONTAINERS_REGISTRIES_CONF": f"{settings}/registries.conf", "TMPDIR": str(_home())}
    done = subprocess.run(whole, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise BedError(f"{' '.join(command[:6])} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _copy_context(checkout: Path, target: Path) -> None:
    """Only what the Dockerfile copies, without the checkout's caches: the same content builds the same image."""
    shutil.copyfile(checkout / "Dockerfile", target / "Dockerfile")
    for source in _sources(checkout):
        found = checkout / source
        (target / source).parent.mkdir(parents=True, exist_ok=True)
        if found.is_dir():
            shutil.copytree(found, target / source, ignore=JUNK, dirs_exist_ok=True)
        else:
            shutil.copyfile(found, target / source)


def _sources(checkout: Path) -> Iterator[str]:
    text = (checkout / "Dockerfile").read_text().replace("\\\n", " ")
    for line in re.findall(r"^COPY\s+(.*)$", text, re.MULTILINE):
        words = line.split()
        if not any(word.startswith("--from") for word in words):
            yield from (word for word in words[:-1] if not word.startswith("--"))


def _stages(checkout: Path) -> list[str]:
    text = (checkout / "Dockerfile").read_text()
    return re.findall(r"^FROM\s+\S+\s+AS\s+(\S+)", text, re.MULTILINE | re.IGNORECASE)


def _digest(context: Path, *words: str) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for file in sorted(path for path in context.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(context)}\0{file.stat().st_mode & 0o111}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


@cache  # to ask pip takes half a second
def _base_name() -> str:
    uri, suite = debian.mirror()
    bundle = CA_BUNDLE.read_bytes() if CA_BUNDLE.is_file() else b""
    words = [uri, suite, *BASE_PACKAGES, _pip_conf(), str(BASE_RECIPE), *PRUNED]
    return f"base-{hashlib.sha256(' '.join(words).encode() + bundle).hexdigest()[:12]}"


def _home() -> Path:
    return cache_root() / "images"


def _forget_old(target: str) -> None:
    archives = sorted(_home().glob(f"{target}-*-*.tar"), key=lambda file: file.stat().st_mtime)
    for old in archives[:-KEPT]:
        old.unlink()


def _shrink_store(say: Callable[[str], None]) -> None:
    """Layers are kept, so that a change of our code does not fetch Python packages again; but not without end."""
    layers = _home() / "store" / "overlay"
    if layers.is_dir() and len(list(layers.iterdir())) > MOST_LAYERS:
        say("clearing old image layers ...")
        _run([*_buildah(), "rmi", "--all", "--force"], say)


if __name__ == "__main__":
    try:
        for each in targets():
            archive = image(each)
            everything, ours = sizes(archive)
            say(f"{name(each)}:{version()}  {everything:.0f} MB, {ours:.0f} MB of it without the base  {archive}")
    except BedError as error:
        sys.exit(str(error))
