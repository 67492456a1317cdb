"""Cgroups for tenants, named as Kubernetes names them; what was made is removed, also after a kill, by a list of it."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from enforcer.attribution.cgroup import ContainerRef, container_of
from tests.gpu.kit.backend import Container
from tests.gpu.kit.result import NotMeasurable

MOUNTS: Final = Path("/proc/self/mounts")
KINDS: Final = ("cgroup2", "cgroup")
PLACE: Final = "kubepods/besteffort"


def hierarchies() -> list[Path]:
    """The mounted cgroup file systems, v2 first."""
    with suppress(OSError):
        rows = [line.split() for line in MOUNTS.read_text().splitlines()]
        return [Path(row[1]) for kind in KINDS for row in rows if row[2] == kind]
    return []


def find() -> Path:
    """A hierarchy in which a process can be put where our attribution sees it.

    Raises:
        NotMeasurable: there is none; says what was tried.
    """
    tried = []
    for mount in hierarchies():
        try:
            if _works(mount):
                return mount
            tried.append(f"{mount}: /proc does not show it")
        except OSError as error:
            tried.append(f"{mount}: {error.strerror}")
    raise NotMeasurable(f"no cgroup can be made for a tenant: {'; '.join(tried) or 'no cgroup file system is mounted'}")


def make(mount: Path, list_of_made: Path) -> Container:
    """Make one container's group. Raises ``OSError``."""
    if not (mount / "cgroup.procs").exists():
        raise OSError(errno.ENODEV, f"{mount} is no cgroup file system")
    owner = ContainerRef(str(uuid.uuid4()), uuid.uuid4().hex * 2)
    folder = mount / PLACE / f"pod{owner.pod_uid}" / owner.container_id
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with list_of_made.open("a") as made:
        # Noted before it is made: whoever tidies up must know of all of it.
        made.writelines(f"{path}\n" for path in missing)
    folder.mkdir(parents=True)
    return Container(owner, folder)


def remove(list_of_made: Path) -> None:
    """Remove what was made and is empty; the deepest first."""
    with suppress(OSError):
        for path in sorted(set(list_of_made.read_text().splitlines()), key=len, reverse=True):
            with suppress(OSError):
                Path(path).rmdir()
        list_of_made.unlink()


@contextmanager
def container(mount: Path, list_of_made: Path) -> Iterator[Container]:
    """One container's group for a while; its processes have to be gone at the end. Raises ``OSError``."""
    made = make(mount, list_of_made)
    try:
        yield made
    finally:
        for folder in (made.folder, made.folder.parent):
            with suppress(OSError):
                folder.rmdir()


def _works(mount: Path) -> bool:
    """Try it with a child of ours. Raises ``OSError``."""
    note = Path(f"/tmp/gpu-kit-cgroups-{os.getpid()}")
    try:
        with container(mount, note) as made:
            return _seen_in(made)
    finally:
        remove(note)


def _seen_in(made: Container) -> bool:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        Path(made.procs).write_text(str(child))
        return container_of(Path(f"/proc/{child}/cgroup").read_text()) == made.owner
    finally:
        os.close(writing)
        os.waitpid(child, 0)
