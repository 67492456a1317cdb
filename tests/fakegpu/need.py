"""What a test says when a tool is missing here: in CI it fails, elsewhere it is skipped with the reason."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

from tests.fakegpu.build import NoCompilerError, library_folder


def missing(reason: str) -> NoReturn:
    """End this test: a failure where CI=true, else a skip that names what is missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def need_library() -> Path:
    """The folder with the simulated NVML library, built if need be."""
    try:
        return library_folder()
    except NoCompilerError as error:
        missing(str(error))
