"""Reading AdmissionReviews strictly, and building answers."""

import base64
import json
from collections.abc import Callable
from itertools import islice, product
from string import ascii_letters

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import PolicyDenied, Problem, RequestError
from gpushare.reasons import Reason
from tests.support import reviews
from webhook.serving import review

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + closing * depth).encode()


@given(JSON)
def test_reads_what_the_standard_allows(value: object) -> None:
    encodable = json.dumps(value, ensure_ascii=False)
    assert review.decode(encodable.encode()) == value


@given(JSON)
def test_reads_escaped_and_plain_text_alike(value: object) -> None:
    assert review.decode(json.dumps(value).encode()) == value


KEY_TOKENS = st.sampled_from(['"a"', '"\\u0061"', '"b"', '"<"', '"\\u003c"', '"\\\\u003c"', '""'])
NUMBER_TOKENS = st.one_of(
    st.integers(-(10**22), 10**22).map(str),
    st.integers(-3, 3).map(lambda offset: str(2**64 + offset)),
    st.integers(-3, 3).map(lambda offset: str(-(2**63) + offset)),
    st.floats().map(str),
    st.sampled_from(["-0", "-0.0", "1.0", "1e2", "1E+2", "01", "1e400", "-1e400", "1e-400", "0.1e1", "9" * 21]),
)
STRING_TOKENS = st.text(max_size=5).map(json.dumps) | st.sampled_from(
    [
        '"&&"',
        '"\\u0026"',
        '"\\u003e"',
        '"\\\\u003e"',
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        '"\\/"',
        '"\\u2028"',
        '"\x00"',
        '"\x7f"',
        '"\\u007F"',
    ]
)
SPACES = st.sampled_from(["", "", "", " ", "\n"])


def _lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(inner, max_size=4).map(lambda entries: f"[{','.join(entries)}]")


def _objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(KEY_TOKENS, SPACES, inner).map(lambda each: f"{each[0]}:{each[1]}{each[2]}")
    return st.lists(members, max_size=4).map(lambda each: f"{{{','.join(each)}}}")


DOCUMENTS = st.recursive(
    NUMBER_TOKENS | STRING_TOKENS | st.sampled_from(["null", "true", "false", "NaN", "nul"]),
    lambda inner: _lists(inner) | _objects(inner),
    max_leaves=8,
)


def outcome(read: Callable[[bytes], object], body: bytes) -> str:
    """What a parser makes of a body, with the types of numbers: the value, or the refusal."""
    try:
        return repr(read(body))
    except RequestError as error:
        return f"refused: {error.message}"


@given(DOCUMENTS, SPACES)
def test_reads_every_document_as_the_strict_parser_does(document: str, space: str) -> None:
    body = (document + space).encode()
    assert outcome(review.decode, body) == outcome(review._decode_slowly, body)


@given(JSON)
def test_writes_what_it_read(value: object) -> None:
    """Also numbers of more than 64 bits, which a pod may hold."""
    assert json.loads(review._encoded([value, 2**64])) == [value, 2**64]


def test_reads_what_the_api_server_sends_without_the_slow_parser() -> None:
    pod = reviews.pod()
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", 'a < "b" && c > d; \t é']
    body = reviews.as_sent(pod)
    assert b"\\u0026" in body
    assert review._decode_quickly(body) == json.loads(body)


@given(st.binary(max_size=200))
def test_never_fails_in_another_way_than_a_request_error(body: bytes) -> None:
    try:
        review.parse(body)
    except RequestError as error:
        assert error.status == 400
        assert error.message


NOT_JSON = [
    (b"", "empty"),
    (b"aaaaaa", "strict JSON"),
    (b'{"a":1,"a":2}', 'duplicate key "a"'),
    (b'{"a":{"b":1,"b":1}}', 'duplicate key "b"'),
    (b'{"a":NaN}', "NaN"),
    (b'{"a":Infinity}', "Infinity"),
    (b'{"a":-Infinity}', "-Infinity"),
    (b'{"a":1e400}', "1e400 is not a number"),
    (b'{"a":' + b"9" * 21 + b"}", "21 digits"),
    (b'{"a":' + b"9" * 5000 + b"}", "5000 digits"),
    (b'\xef\xbb\xbf{"a":1}', "strict JSON"),
    ('{"a":1}'.encode("utf-16"), "Unicode"),
    (b'{"a":"\xff"}', "Unicode"),
    (b'{"a":"\xed\xa0\x80"}', "Unicode"),
    (b'{"a":"\\ud800"}', "Unicode"),
    (b'{"a":1} {"b":2}', "Extra data"),
    (b'{"a":1}\x00', "Extra data"),
    (b"{'a':1}", "strict JSON"),
    (b'{"a":1,}', "strict JSON"),
    (b'{"a":01}', "strict JSON"),
    (b'{"a":+1}', "strict JSON"),
    (b'{"a":"\n"}', "strict JSON"),
    (b'{"a":/**/1}', "strict JSON"),
    (nested(255), "more than 254 levels"),
    (nested(255, '{"a":', "}").replace(b":}", b":1}"), "more than 254 levels"),
    (nested(300, "[ "), "more than 254 levels"),
    (nested(10_000), "more than 254 levels"),
    (b"[" * 10_000, "more than 254 levels"),
    (b"[" * 100_000, "more than 26666 objects and lists"),
    (b"[" + b"{}," * 20_000 + b"{}]", "more than 20000 objects and lists"),
    (b"[" + b'{"abcdef":""},' * 400_001 + b"{}]", "more than 400000"),
]


@pytest.mark.parametrize(("body", "says"), NOT_JSON, ids=map(str, range(len(NOT_JSON))))
def test_refuses_what_is_not_strict_json(body: bytes, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        review.decode(body)


def test_accepts_as_many_objects_as_field_ownership_has_at_its_densest() -> None:
    keys = (f"f:{''.join(each)}" for each in islice(product(ascii_letters, repeat=3), 60_000))
    fields = ",".join(f'"{key}":{{".":{{}},"f:a":{{}}}}' for key in keys)
    body = f'{{"metadata":{{"managedFields":[{{"fieldsV1":{{{fields}}}}}]}}}}'.encode()
    assert len(body) > 1_500_000
    assert review.decode(body) == json.loads(body)


def test_accepts_nesting_up_to_the_limit() -> None:
    assert review.decode(nested(254)) is not None


@given(st.text(alphabet='[]{}"\\:,a ', max_size=40), st.integers(250, 258))
def test_brackets_inside_strings_do_not_count(text: str, depth: int) -> None:
    body = b"[" * depth + json.dumps(text).encode() + b"]" * depth
    if depth <= 254:
        review.decode(body)
    else:
        with pytest.raises(RequestError, match="levels"):
            review.decode(body)


def test_reads_a_whole_review() -> None:
    asked = review.parse(reviews.encoded(reviews.pod(), dryRun=True, subResource="ephemeralcontainers", oldObject={}))

    assert asked.uid == "705ab4f5-6393-11e8-b7cc-42010a800002"
    assert (asked.operation, asked.resource, asked.subresource) == ("CREATE", ("", "pods"), "ephemeralcontainers")
    assert (asked.namespace, asked.name, asked.dry_run) == ("team", "model-0", True)
    assert asked.object == reviews.pod()
    assert asked.old_object == {}


def test_null_is_absent() -> None:
    asked = review.parse(reviews.encoded(None, dryRun=None, subResource=None, userInfo=None, name=None))

    assert (asked.object, asked.dry_run, asked.subresource, asked.user, asked.name) == (None, False, "", "", "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"uid": ""}, "uid"),
        ({"uid": None}, "uid"),
        ({"uid": 7}, "uid"),
        ({"uid": "x" * 300}, "uid"),
        ({"operation": None}, "operation"),
        ({"operation": "create"}, "operation"),
        ({"operation": []}, "operation"),
        ({"object": []}, "object"),
        ({"object": "pod"}, "object"),
        ({"oldObject": 1}, "oldObject"),
        ({"dryRun": "false"}, "dryRun"),
        ({"dryRun": 0}, "dryRun"),
        ({"resource": "pods"}, "resource"),
        ({"resource": {"resource": 1}}, "resource"),
        ({"userInfo": []}, "userInfo"),
        ({"userInfo": {"username": {}}}, "username"),
        ({"namespace": 1}, "namespace"),
        ({"subResource": {}}, "subResource"),
    ],
)
def test_refuses_a_request_of_the_wrong_shape(change: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        review.parse(reviews.encoded(reviews.pod(), **change))


@pytest.mark.parametrize("version", ["admission.k8s.io/v1beta1", "admission.k8s.io/v2", "v1", "", None, 1, {}])
def test_speaks_one_version_only(version: object) -> None:
    body = json.dumps({**reviews.review(reviews.pod()), "apiVersion": version}).encode()

    with pytest.raises(RequestError, match="this webhook accepts only"):
        review.parse(body)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b"1", b'"AdmissionReview"'])
def test_refuses_what_is_no_review(body: bytes) -> None:
    with pytest.raises(RequestError):
        review.parse(body)


def test_allowed_says_no_more_than_that() -> None:
    answer = review.allowed("u1", Reason.NO_SHARE)

    assert json.loads(answer.body) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u1", "allowed": True},
    }
    assert (answer.status, answer.result) == (200, "allowed")


def test_patched_carries_the_patch_in_base64() -> None:
    patch = [{"op": "add", "path": "/metadata/labels", "value": {"ä": "ö"}}]

    response = json.loads(review.patched("u1", patch, Reason.APPLIED, ["careful"]).body)["response"]

    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"], validate=True)) == patch
    assert response["warnings"] == ["careful"]


def test_an_empty_patch_is_no_patch() -> None:
    answer = review.patched("u1", [], Reason.UNCHANGED)

    assert "patch" not in answer.body.decode()
    assert answer.result == "allowed"


def test_denied_names_code_reason_and_all_problems() -> None:
    others = [Problem("spec.hostIPC", "too", Reason.INVALID_POD)]
    answer = review.denied("u1", PolicyDenied("spec.hostPID", "take it out", others=others))

    response = json.loads(answer.body)["response"]
    assert answer.status == 200
    assert response["allowed"] is False
    status = response["status"]
    assert (status["code"], status["reason"]) == (403, "ConflictsWithShare")
    assert [line.removeprefix("* ") for line in status["message"].split("\n")[1:]] == [
        "spec.hostPID: take it out",
        "spec.hostIPC: too",
    ]
    assert status["details"]["causes"] == [
        {"reason": "ConflictsWithShare", "field": "spec.hostPID", "message": "take it out"},
        {"reason": "InvalidPod", "field": "spec.hostIPC", "message": "too"},
    ]


def test_an_error_gives_no_result() -> None:
    answer = review.errored(500, Reason.INTERNAL, "a sentence")

    assert (answer.status, answer.body) == (500, b"a sentence")
