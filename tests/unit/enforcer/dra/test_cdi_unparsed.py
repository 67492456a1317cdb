"""CDI specifications of others that PyYAML cannot read are passed over."""

from pathlib import Path

import pytest

from enforcer.dra.cdi_files import _parsed


@pytest.mark.parametrize("text", ["a: [", "!!bool x", "!!int ''", "!!timestamp x", "a: 1" + ":1" * 200 + ".0"])
def test_a_value_that_does_not_fit_its_tag_is_passed_over(tmp_path: Path, text: str) -> None:
    file = tmp_path / "vendor.yaml"
    file.write_text(text)
    assert _parsed(file) is None
