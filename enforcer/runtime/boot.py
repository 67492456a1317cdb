"""Which boot of the machine this is."""

from pathlib import Path


def boot_id(file: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Tell this boot from others; empty where the kernel does not say, and then nothing is remembered."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
