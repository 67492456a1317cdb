"""The error tree: one class for each way an error is handled. Pure.

``RequestError`` is a malformed call (HTTP 400, or its own status), ``PolicyDenied`` a well-formed pod that breaks a
rule (``allowed: false``), everything else a fault of ours (HTTP 500, so that ``failurePolicy`` decides).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from gpushare.reasons import Reason

MAX_PROBLEMS: Final = 64
"""Problems of one pod that are reported at once: an agent of a node has sixty. More would cost what nobody reads."""
MAX_LISTING: Final = 24_000
"""Characters of a list of problems."""
_LAST_LINE: Final = 80
"""Characters for the first line of a list and the last, which counts what is left out."""


class GpuShareError(Exception):
    """Root of every error this product raises on purpose.

    Args:
        message: one sentence that names the field, the value and the way out.
        reason: the word under which it is counted, logged and reported.
    """

    reason: Reason = Reason.INTERNAL

    def __init__(self, message: str, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason


class RequestError(GpuShareError):
    """A call that cannot be read. ``status`` is the HTTP status it is answered with."""

    reason = Reason.BAD_REQUEST

    def __init__(self, message: str, reason: Reason | None = None, *, status: int = 400) -> None:
        super().__init__(message, reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason to deny a pod.

    ``field`` is the path of what to change, as Kubernetes writes it: ``spec.volumes[0].hostPath.path``. Brackets hold
    an index, a key, or the name of a list's entry.
    """

    field: str
    message: str
    reason: Reason = Reason.CONFLICTS_WITH_SHARE

    def __str__(self) -> str:
        """Return the problem as a line for people."""
        return f"{self.field}: {self.message}"


class PolicyDenied(GpuShareError):
    """A well-formed pod that is denied, with all its problems. ``field`` and ``reason`` are those of the first."""

    reason = Reason.CONFLICTS_WITH_SHARE

    def __init__(
        self,
        field: str,
        message: str,
        reason: Reason | None = None,
        *,
        others: Sequence[Problem] = (),
        complete: bool = True,
        room: int = MAX_LISTING,
    ) -> None:
        """Deny a pod because of one problem, and of ``others`` beside it.

        Args:
            field: path of what to change.
            message: what is wrong there, and what to write instead.
            reason: the word under which the problem is counted.
            others: more problems.
            complete: whether these are all.
            room: characters of the text.
        """
        first = Problem(field, message, reason or Reason.CONFLICTS_WITH_SHARE)
        self.problems: Final = (first, *others)
        self.complete: Final = complete
        super().__init__(listing(self.problems, room, complete=complete), reason)
        self.field = field

    @classmethod
    def of(cls, problems: Sequence[Problem], *, complete: bool = True, room: int = MAX_LISTING) -> Self:
        """Deny a pod because of at least one problem."""
        first, *others = problems
        return cls(first.field, first.message, first.reason, others=others, complete=complete, room=room)


def listing(problems: Sequence[Problem], room: int, *, complete: bool = True) -> str:
    """Write problems as text: one as a sentence, several as lines, of which those that fit into ``room`` are shown."""
    if len(problems) == 1 and complete:
        return str(problems[0])[:room]
    lines, left = [f"{'' if complete else 'more than '}{len(problems)} problems:"], room - _LAST_LINE
    for problem in problems:
        line = f"* {problem}"
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    rest = len(problems) + 1 - len(lines)
    if rest or not complete:
        lines.append(f"* and {rest} more" if complete else "* and more problems; correct the listed fields first")
    return "\n".join(lines)


class QuantityError(GpuShareError, ValueError):
    """A value that is not a quantity we accept. The message says what was read and what to write instead."""

    reason = Reason.INVALID_QUANTITY


class ConfigError(GpuShareError):
    """A setting of ours that cannot be used; the process says so and exits with 2."""

    reason = Reason.INVALID_VALUE


class NewerFormatError(ConfigError, OSError):
    """A file that a newer release wrote: it is neither read nor written, as on a disk that refuses."""

    reason = Reason.CHECKPOINT_UNREADABLE


class ClusterError(GpuShareError):
    """The API server could not be reached, or answered with an error. ``status`` is 0 when it did not answer."""

    reason = Reason.API_UNREACHABLE
    PASSING = frozenset({401, 408, 409, 429})
    """Of the client's own errors those that pass: a token that is renewed, a conflict, too much to do."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def final(self) -> bool:
        """Whether it is no use to ask the same again."""
        return 400 <= self.status < 500 and self.status not in self.PASSING  # noqa: PLR2004 - HTTP's own classes


class WatchBroken(ClusterError):
    """The connection of a watch failed. What was seen before is true, and it can be taken up where it was."""


class PrepareError(GpuShareError):
    """A claim cannot be prepared for its pod now. The kubelet shows the sentence in the pod's Events and tries again.

    Tenants read it: it names nobody else's pods or claims.
    """

    reason = Reason.CLAIM_UNSUPPORTED


class PermissionRefused(PrepareError):
    """The claim is not allowed in its namespace. To try again is no use."""


class ResizeRefused(GpuShareError):
    """A quota that cannot be changed as requested. Tenants read the message."""

    reason = Reason.RESIZE_REFUSED


class KubeletError(GpuShareError):
    """The kubelet did not answer a question."""

    reason = Reason.DRIVER_NOT_REGISTERED


class NvmlError(GpuShareError):
    """NVML did not answer, or answered something that cannot be true. The enforcer is blind until it does."""

    reason = Reason.NVML_UNAVAILABLE


class MpsError(GpuShareError):
    """The MPS control daemon did not answer, or refused a command."""

    reason = Reason.MPS_UNREACHABLE


class RecordError(GpuShareError):
    """The audit log could not be written or does not verify. Nobody is killed while this stands."""

    reason = Reason.AUDIT_UNWRITABLE
