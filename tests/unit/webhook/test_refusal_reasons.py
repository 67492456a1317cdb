"""Reasons of refusals: a client must not take one for a reason of Kubernetes' own, and try again."""

import re
from pathlib import Path
from typing import Final

from gpushare.errors import PolicyDenied, QuantityError
from gpushare.reasons import Reason

ROOT: Final = Path(__file__).parents[3]
KUBERNETES: Final = frozenset(
    [
        "Unauthorized",
        "Forbidden",
        "NotFound",
        "AlreadyExists",
        "Conflict",
        "Gone",
        "Invalid",
        "ServerTimeout",
        "StoreReadError",
        "Timeout",
        "TooManyRequests",
        "BadRequest",
        "MethodNotAllowed",
        "NotAcceptable",
        "RequestEntityTooLarge",
        "UnsupportedMediaType",
        "InternalError",
        "Expired",
        "ServiceUnavailable",
    ]
)
"""``metav1.StatusReason``. client-go reads these before the code: ``IsConflict`` of a 403 is true."""
SENT: Final = (
    "webhook/mutation",
    "gpushare/namespace_policy.py",
    "gpushare/quantity.py",
    "gpushare/annotation_values.py",
)
"""Where a refusal is made. What is not answered (``review.errored``) carries no Status."""


def sources() -> list[str]:
    paths = [ROOT / each for each in SENT]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return [file.read_text() for file in files]


def test_no_refusal_carries_a_reason_of_kubernetes() -> None:
    named = {Reason[name] for text in sources() for name in re.findall(r"\bReason\.([A-Z_]+)", text)}
    sent = {*named, PolicyDenied.reason, QuantityError.reason}

    assert len(sent) > 10, "the refusals are made elsewhere now"
    assert {str(each) for each in sent} & KUBERNETES == set()
