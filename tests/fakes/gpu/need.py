"""The compiled fake, or a word about what is missing to build it."""

from pathlib import Path

from tests.fakes.gpu.build import NoCompilerError, library_folder
from tests.support.need import missing


def need_library() -> Path:
    """The folder with the simulated NVML library, built if need be."""
    try:
        return library_folder()
    except NoCompilerError as error:
        missing(str(error))
