"""Packages in the cache that several processes want at once."""

from pathlib import Path

import pytest

from tests.support import debian


def test_two_that_unpack_the_same_package_share_what_the_first_has_placed(tmp_path: Path) -> None:
    home = tmp_path / "package-1.0"
    for name in ("first", "second"):
        (tmp_path / name / "usr").mkdir(parents=True)
        (tmp_path / name / "usr" / "by").write_text(name)
        debian.place(tmp_path / name, home)
    assert (home / "usr" / "by").read_text() == "first"


def test_a_place_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(debian.PackagesUnobtainableError):
        debian.place(tmp_path / "tree", tmp_path / "missing" / "package-1.0")
