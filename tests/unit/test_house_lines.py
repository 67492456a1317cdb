"""The ratchet on the product's size counts code alone, and bites when a package grows or its number is stale."""

import pytest

from tests.house_lines import SLACK, code_lines, growth

CODE = '''"""Module.

More.
"""

# A comment.
A = 1  # counts
"""Of A."""


def f() -> str:
    """Function."""
    return """a text

    of four lines
    """
'''


def package(lines: int) -> dict[str, str]:
    return {"webhook/a.py": "x = 1\n" * (lines // 2), "webhook/b/c.py": "y = 1\n" * (lines - lines // 2)}


def test_only_code_counts() -> None:
    assert code_lines(CODE) == 6
    assert code_lines("") == 0


@pytest.mark.parametrize("lines", [500, 500 - SLACK])
def test_a_package_within_its_number_is_fine(lines: int) -> None:
    assert growth(package(lines), {"webhook": 500}, ()) == []


def test_one_line_more_needs_a_row_that_names_a_feature() -> None:
    limits = {"webhook": 500}
    assert [each.partition(":")[0] for each in growth(package(501), limits, ())] == ["webhook"]
    assert growth(package(501), limits, (("webhook", 1, "shares of several GPUs"),)) == []
    assert len(growth(package(501), limits, (("webhook", 1, " "),))) == 1
    assert len(growth(package(501), limits, (("enforcer", 1, "resize"),))) == 1


def test_a_number_that_is_no_longer_reached_has_to_fall() -> None:
    (breach,) = growth(package(499 - SLACK), {"webhook": 500}, ())
    assert f"by {SLACK + 1}" in breach


def test_other_folders_may_grow() -> None:
    assert growth({"tests/a.py": "x = 1\n" * 9}, {}, ()) == []
