import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract
from gpushare.errors import QuantityError
from gpushare.resize_annotation import MAX_LENGTH, ResizeRequest, format_request, parse_request, requests_in


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("3Gi", ResizeRequest(3072)),
        ("3072Mi;force", ResizeRequest(3072, force=True)),
        ("1.5Gi;id=5f3a", ResizeRequest(1536)),
        ("512Mi;force;id=0", ResizeRequest(512, force=True)),
    ],
)
def test_an_amount_is_enough_and_two_words_may_follow(text: str, wish: ResizeRequest) -> None:
    assert parse_request(text) == wish


@pytest.mark.parametrize(
    "text",
    [
        "", "3", "3GB", "3Gi;", "3Gi;Force", "3Gi force", "force", ";force", "3Gi;id=", "3Gi;id=A", "3Gi;id=5f3a\n",
        "3Gi;at=1", "3Gi" + ";force" * 20, None, 7, ["3Gi"], "\u0663Gi",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_a_sentence(text: object) -> None:
    with pytest.raises(QuantityError, match=r"write|did you mean"):
        parse_request(text)


def test_a_value_that_is_too_long_is_refused_with_the_maximum() -> None:
    with pytest.raises(QuantityError, match=str(MAX_LENGTH)):
        parse_request("3Gi" + ";force" * 20)


@given(st.integers(1, 2**40), st.booleans(), st.from_regex(r"[0-9a-z]{1,16}", fullmatch=True))
def test_what_is_written_is_read(mib: int, force: bool, mark: str) -> None:  # noqa: FBT001
    assert parse_request(format_request(ResizeRequest(mib, force), mark)) == ResizeRequest(mib, force)


def test_resize_requests_are_found_by_their_container() -> None:
    annotations = {f"{contract.RESIZE_OF}main": "3Gi", contract.MEMORY: "4Gi", "RESIZE.gpu-share.io/x": "1Gi"}
    assert requests_in(annotations) == {"main": "3Gi"}
