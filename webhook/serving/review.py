"""Parse an AdmissionReview strictly and build its response: bytes in, bytes out. Pure.

A malformed call is a ``RequestError`` (HTTP 400), so that ``failurePolicy`` decides; it is never a 500. What Python's
parser accepts beyond JSON (duplicate keys, NaN, UTF-16, a 5,000-digit integer) is refused, because the API server's
own parser would read something else there.
"""

import json
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import orjson

from gpushare.errors import PolicyDenied, RequestError
from gpushare.reasons import Reason

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
FORBIDDEN: Final = 403

MAX_DEPTH: Final = 254
"""What ``orjson`` writes. Kubernetes objects nest about 20 deep."""
TOO_DEEP: Final = f"the body has more than {MAX_DEPTH} levels of objects and lists"
MAX_NODES: Final = 400_000
"""Objects and lists in one review. Two objects of etcd's 1.5 MiB with field ownership stay well below."""
FREE_NODES: Final = 10_000
BYTES_OF_NODE: Final = 6
"""The densest part of an object that the API server writes is its field ownership; ``".":{},`` has seven bytes."""
MAX_INTEGER_DIGITS: Final = 20
"""Digits and sign of a 64-bit integer."""
MAX_UID: Final = 253
MAX_MESSAGE: Final = 2000
MAX_CAUSE: Final = 1000
"""Characters of the field and of the message of one problem; ``PolicyDenied`` bounds the text of all together."""
SHORT: Final = 60
SMALL: Final = 100
"""Keys among which the one that stands twice is searched, which is quadratic."""

_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'{[]}"')
_HTML: Final = ((b"\\u003c", b"<"), (b"\\u003e", b">"), (b"\\u0026", b"&"))
"""What Go's encoder, and so the API server, escapes in strings without need."""
_UNLIKE: Final = object()
_KINDS: Final = {dict: "an object", str: "a string", bool: "true or false"}
_T = TypeVar("_T")

Object = dict[str, Any]
Result = Literal["allowed", "patched", "denied", "errored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What an AdmissionReview asks. ``object`` and ``old_object`` are the raw dicts, ``None`` where there is none."""

    uid: str
    operation: str
    namespace: str
    name: str
    resource: tuple[str, str]
    """API group and plural: ``("", "pods")``."""
    subresource: str
    user: str
    dry_run: bool
    object: Object | None
    old_object: Object | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP answer, and what it is counted and logged as."""

    status: int
    body: bytes
    result: Result
    reason: Reason
    message: str = ""
    """The sentence in it, where it is a refusal or an error."""
    content_type: str = "application/json"


def parse(body: bytes) -> Review:
    """Read the bytes of a POST.

    Raises:
        RequestError: it is not one ``admission.k8s.io/v1`` review that can be answered; the message says why.
    """
    review = _optional({"body": decode(body)}, "body", dict, "the body") or {}
    if (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND):
        raise RequestError(
            f"apiVersion and kind are {_short(review.get('apiVersion'))} and {_short(review.get('kind'))}; "
            f"this webhook accepts only {API_VERSION} {KIND}: set admissionReviewVersions to [v1]"
        )
    request = _optional(review, "request", dict, "request") or {}
    operation = _text(request, "operation")
    if operation not in OPERATIONS:
        raise RequestError(f"request.operation {_short(operation)} is unknown; it is one of {sorted(OPERATIONS)}")
    uid, resource = _text(request, "uid"), _optional(request, "resource", dict) or {}
    if not 0 < len(uid) <= MAX_UID:
        raise RequestError(f"request.uid is {_short(uid)}; it has to be 1 to {MAX_UID} characters")
    return Review(
        uid=uid,
        operation=operation,
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        resource=(_text(resource, "group"), _text(resource, "resource")),
        subresource=_text(request, "subResource"),
        user=_text(_optional(request, "userInfo", dict) or {}, "username"),
        dry_run=_optional(request, "dryRun", bool) or False,
        object=_optional(request, "object", dict),
        old_object=_optional(request, "oldObject", dict),
    )


def decode(body: bytes) -> Any:
    """Parse JSON as the standard has it: UTF-8, no duplicate keys, no NaN, 64-bit integers, at most 254 deep.

    Raises:
        RequestError: it is anything else.
    """
    if not body:
        raise RequestError("the body is empty; send an AdmissionReview")
    _check_number(body)
    value = _decode_quickly(body)
    return _decode_slowly(body) if value is _UNLIKE else value


def _decode_quickly(body: bytes) -> Any:
    """Parse a body that nothing is lost of; ``_UNLIKE`` for any other, whose value is freed before the second parse."""
    try:
        value = orjson.loads(body)
        return value if orjson.dumps(value) == _plain(body) else _UNLIKE
    except orjson.JSONDecodeError:
        return _UNLIKE
    except orjson.JSONEncodeError as error:  # of what it has read, it writes all but deeper levels
        raise RequestError(TOO_DEEP) from error


def _plain(body: bytes) -> bytes:
    """Write a body of the API server as ``orjson`` writes what it has read from it.

    Where both are equal, nothing was lost: no key twice, no number rounded. A backslash before an escape makes what is
    replaced here invalid, and so unequal.
    """
    if b"\\u00" in body:
        for escaped, character in _HTML:
            body = body.replace(escaped, character)
    return body.strip()


def _decode_slowly(body: bytes) -> Any:
    """Parse any other body: say what is wrong with it, or keep integers exact that ``orjson`` rounds."""
    try:
        value = _DECODER.decode(body.decode())
        if b"\\ud" in body or b"\\uD" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise RequestError(TOO_DEEP) from error
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise RequestError(f"the body is not valid Unicode: {error.reason}") from error
    except ValueError as error:
        raise RequestError(f"the body is not strict JSON: {str(error)[:200]}") from error
    return value


def allowed(uid: str, reason: Reason, warnings: Iterable[str] = ()) -> Answer:
    """Let the object pass as it is."""
    return _answer(uid, {"allowed": True}, warnings, "allowed", reason)


def patched(uid: str, patch: list[Object], reason: Reason, warnings: Iterable[str] = ()) -> Answer:
    """Let the object pass, changed by a JSON patch; an empty patch is ``allowed``."""
    if not patch:
        return allowed(uid, reason, warnings)
    encoded = b64encode(_encoded(patch)).decode()
    response = {"allowed": True, "patchType": "JSONPatch", "patch": encoded}
    return _answer(uid, response, warnings, "patched", reason)


def denied(uid: str, error: PolicyDenied) -> Answer:
    """Refuse the object: 403, the first problem's reason, all problems as text that kubectl shows, and as causes."""
    causes = [
        {"reason": each.reason.value, "message": each.message[:MAX_CAUSE], "field": each.field[:MAX_CAUSE]}
        for each in error.problems
    ]
    status = {"code": FORBIDDEN, "reason": error.reason.value, "message": error.message, "details": {"causes": causes}}
    return _answer(uid, {"allowed": False, "status": status}, (), "denied", error.reason, error.message)


def errored(status: int, reason: Reason, message: str) -> Answer:
    """Say that this call could not be answered; the API server then applies ``failurePolicy``.

    The sentence goes out as plain text, which the API server repeats to the user. No review is sent: one with
    ``allowed`` in it would be a decision.
    """
    body = message[:MAX_MESSAGE].encode("utf-8", "replace")
    plain = "text/plain; charset=utf-8"
    return Answer(status=status, body=body, result="errored", reason=reason, message=message, content_type=plain)


def _answer(
    uid: str, response: Object, warnings: Iterable[str], result: Result, reason: Reason, message: str = ""
) -> Answer:
    response = {"uid": uid, **response}
    if lines := [*warnings]:
        response["warnings"] = lines
    body = _encoded({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    return Answer(status=200, body=body, result=result, reason=reason, message=message)


def _encoded(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits, which a pod may hold
        return json.dumps(value, separators=(",", ":")).encode()


def _check_number(body: bytes) -> None:
    """Count brackets outside of strings. All work is done by ``bytes`` methods: 20 us for 10 kB."""
    size = len(body)
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A quote next to a quote is a string without a bracket in it; of the rest every second piece is inside a string.
    shape = body.translate(None, _STRUCTURE).replace(b'""', b"")
    if b'"' in shape:
        shape = b"".join(shape.split(b'"')[::2])
    if len(shape) > 2 * (most := most_nodes(size)):
        raise RequestError(f"the body has more than {most} objects and lists")


def most_nodes(size: int) -> int:
    """Return how many objects and lists a body of so many bytes may have; each costs 0.1 us."""
    return min(MAX_NODES, FREE_NODES + size // BYTES_OF_NODE)


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs[:SMALL]]
        twice = next((key for key in keys if keys.count(key) > 1), "among many")
        raise ValueError(f"duplicate key {_short(twice)}")
    return result


def _integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise ValueError(f"integer of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is not a number of 64 bits")
    return value


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_float
)


def _optional(parent: Mapping[str, Any], key: str, kind: type[_T], field: str = "") -> _T | None:
    """Return a value of a kind; ``None`` where there is none."""
    value = parent.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise RequestError(f"{field or 'request.' + key} is {_short(value)}; it has to be {_KINDS[kind]}")


def _text(parent: Mapping[str, Any], key: str) -> str:
    return _optional(parent, key, str) or ""


def _short(value: Any) -> str:
    """A value for a message: JSON, at most 60 characters."""
    text = json.dumps(value) if not isinstance(value, dict | list) else f"a {type(value).__name__}"
    return text if len(text) <= SHORT else f"{text[: SHORT - 3]}..."
