"""Becomes another program: in a cgroup, as a user, in a mount namespace of its own. Only the standard library.

    python launch.py [--cgroup FILE] [--private-shm [--server-files]] [--uid N] -- program arguments

A process of its own rather than a hook after fork: experiments use threads. What cannot be done is said as a client
would say it, in one line of JSON, and the program is not started.
"""

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_SET_DUMPABLE = 4
MAPPED_ROOT = 1 << 16
"""From here on a uid is the one that root of a user namespace has outside, as the kubelet maps it."""
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
SHM = Path("/dev/shm")
SERVER_FILES = "cuda.shm.*"


def main(argv: Sequence[str]) -> int:
    """Enter and become the program; returns only where that fails."""
    options = argparse.ArgumentParser()
    options.add_argument("--cgroup")
    options.add_argument("--private-shm", action="store_true")
    options.add_argument("--server-files", action="store_true")
    options.add_argument("--uid", type=int)
    options.add_argument("program", nargs="+")
    wanted = options.parse_args(argv)
    try:
        if wanted.cgroup:
            Path(wanted.cgroup).write_text(str(os.getpid()))
        if wanted.private_shm:
            private_shm(sorted(SHM.glob(SERVER_FILES)) if wanted.server_files else [])
        if wanted.uid is not None:
            become(wanted.uid)
        os.execvp(wanted.program[0], wanted.program)
    except OSError as error:
        print(json.dumps({"error": -1, "name": f"cannot be started so: {error}"}), flush=True)
    return 1


def private_shm(files: Sequence[Path]) -> None:
    """A /dev/shm that nobody else sees, with these files of the host's alone. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS), "unshare")
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make / private")
    kept = {each: os.open(each, os.O_PATH | os.O_CLOEXEC) for each in files}
    _check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777"), "mount /dev/shm")
    for file, descriptor in kept.items():
        file.touch()
        source = f"/proc/self/fd/{descriptor}".encode()
        _check(libc.mount(source, os.fsencode(file), None, MS_BIND, None), f"mount {file}")


def become(uid: int) -> None:
    """Be that user and no member of any other group; root of its own namespace where so mapped. Raises ``OSError``."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    if uid >= MAPPED_ROOT:
        become_root_of_a_namespace(uid)


def become_root_of_a_namespace(uid: int) -> None:
    """Be uid 0 in a user namespace, and ``uid`` outside of it. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    # A process that has changed its user may not open its own maps otherwise.
    _check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")
    _check(libc.unshare(CLONE_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/self/{name}").write_text(f"0 {uid} 1")


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
