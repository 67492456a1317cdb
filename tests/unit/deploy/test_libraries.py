"""The libraries that the image holds: some program loads each of them, and NOTICE names each with its licence."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest

from tests.house import PRODUCT, ROOT
from tests.support import notice

OWN: Final = "gpu-share"
LOAD_ALL: Final = """
import importlib, json, sys
absent, modules = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(absent))
for name in modules:
    importlib.import_module(name)
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""
"""Imports every module of the programs where libraries that the image lacks are absent."""


def distributions() -> dict[str, set[str]]:
    """Names of distributions, as requirements.txt spells them, by top-level import name."""
    return {
        top: {re.sub(r"[-_.]+", "-", name).lower() for name in names} for top, names in packages_distributions().items()
    }


def programs() -> Iterator[str]:
    """Every module of the programs, and what their functions import when they run."""
    for file in (file for part in PRODUCT for file in (ROOT / part).rglob("*.py")):
        if file.stem != "__main__":
            yield ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        functions = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))
        for node in (node for function in functions for node in ast.walk(function)):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)


def removed() -> Iterator[str]:
    """Modules of the Kubernetes client that the Dockerfile removes."""
    found = re.search(r"^RUN cd \S*/(kubernetes) && rm -r (.*) \\$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found, "the Dockerfile removes parts of the Kubernetes client no more: delete this function"
    site = Path(next(path for path in sys.path if (Path(path) / found[1]).is_dir()))
    for path in (path for pattern in found[2].split() for path in (site / found[1]).glob(pattern)):
        yield ".".join(path.relative_to(site).with_suffix("").parts)


def loaded(absent: set[str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALL], input=json.dumps([sorted(absent), list(programs())]),
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return set(json.loads(done.stdout))


def test_programs_load_every_library_of_the_image_and_no_other() -> None:
    whose, held = distributions(), {*notice.locked(), OWN}
    absent = {top for top, names in whose.items() if not names & held} - sys.stdlib_module_names
    without = {"aiohttp", "kubernetes.aio", "kubernetes.client.api", "kubernetes.client.models.v1_pod"}
    absent |= set(removed())
    assert absent >= without
    used = {name for module in loaded(absent) for name in whose.get(module.partition(".")[0], ())}
    assert held - {OWN} == used & held - {OWN}


def test_the_notice_names_every_library_of_the_image() -> None:
    assert notice.FILE.read_text() == notice.notice(), "run make golden"


@pytest.mark.parametrize("name", notice.locked())
def test_no_library_asks_more_of_the_image_than_a_notice_and_its_source(name: str) -> None:
    assert "GPL" not in notice.licence(name)
