"""Compare the image of a pod's sidecar with the image of this release. Pure.

A registry in front of the name is another place of the same image. Another webhook may put a digest behind the tag, or
in its place, which names the same image more exactly.
"""

from dataclasses import dataclass
from typing import Final

MAX_REFERENCE: Final = 1024
_LATEST: Final = "latest"
"""Container runtimes read a reference without tag and digest so."""


@dataclass(frozen=True, slots=True)
class Image:
    """A parsed reference. ``name`` is the last part of the repository; ``tag`` and ``digest`` are empty if absent."""

    name: str
    tag: str
    digest: str


def parse(reference: object) -> Image:
    """Parse the reference of an image; what has no name, or is too long, has the empty name."""
    if not isinstance(reference, str) or len(reference) > MAX_REFERENCE:
        return Image("", "", "")
    path, _, digest = reference.partition("@")
    name, _, tag = path.rpartition("/")[2].partition(":")
    return Image(name, tag or ("" if digest else _LATEST), digest)


def same_release(standing: Image, wanted: Image) -> bool | None:
    """Tell whether two images of one repository are of one release.

    Returns:
        ``None`` if one of them has only a tag and the other only a digest.
    """
    if standing.digest and wanted.digest:
        return standing.digest == wanted.digest
    if standing.tag and wanted.tag:
        return standing.tag == wanted.tag
    return None


def renewed(standing: str, wanted: str) -> str:
    """Return the image of a standing sidecar: the standing one unless it is of another release, or less exact."""
    before, ours = parse(standing), parse(wanted)
    if ours.digest:
        return standing if before.digest == ours.digest else wanted
    return wanted if same_release(before, ours) is False else standing
