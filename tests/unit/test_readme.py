from pathlib import Path

import pytest

from tests.e2e import readme

TEXT = """
<!-- install:begin -->
```sh
NODE=gpu-node-1        # which
OPTIONS=""
helm install $OPTIONS
```
<!-- install:end -->
"""


def test_the_readers_values_are_filled_in_and_all_else_is_literal(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text(TEXT)
    script = readme.script("install", {"NODE": "n1", "OPTIONS": "--set a=b"}, document)
    assert script == "set -eu\nNODE='n1'\nOPTIONS='--set a=b'\nhelm install $OPTIONS\n"


def test_a_block_that_is_not_there_is_named(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text(TEXT)
    with pytest.raises(LookupError, match=r"README.md has no block 'verify'"):
        readme.script("verify", {}, document)


def test_every_command_of_the_page_for_the_night_is_in_a_block_that_a_test_runs() -> None:
    fences = readme.NIGHT.read_text().count("```sh\n")
    assert fences == len(readme.blocks(readme.NIGHT)) > 10
    for name in readme.blocks(readme.NIGHT):
        assert "gpu-share" in readme.script(name, {}, readme.NIGHT)


@pytest.mark.parametrize("name", ["install", "verify", "uninstall"])
def test_the_readme_has_its_blocks(name: str) -> None:
    assert "gpu-share" in readme.script(name, {})
    assert "helm upgrade" in readme.script("upgrade", {}, readme.UPGRADES)
