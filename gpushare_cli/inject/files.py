"""Find and read the manifests that ``-f`` names: files, folders, standard input."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpushare.errors import ConfigError, RequestError
from gpushare_cli.inject.manifest import Document, read, split

STDIN: Final = "-"
BOM: Final = "\ufeff"
SUFFIXES: Final = (".json", ".yaml", ".yml")
"""What a manifest in a folder ends in, as for ``kubectl``."""


def source(filename: str) -> str:
    """Return the text of a file, or of standard input for ``-``.

    Raises:
        ConfigError: there is no such file, or no name of one.
        RequestError: it is not a text.
    """
    if not filename:  # an unset variable of a script; as a path it would be the folder we are in
        raise ConfigError(f"'' is not a file name; write one, or {STDIN} for standard input")
    try:
        content = sys.stdin.buffer.read() if filename == STDIN else Path(filename).read_bytes()
    except OSError as error:
        raise ConfigError(f"{filename} cannot be read: {error.strerror}") from None
    return read(content)


def found(names: Iterable[str], *, recursive: bool) -> list[str]:
    """Return the files that names of files and folders mean, in order and each once.

    Raises:
        ConfigError: a folder holds no manifest.
    """
    each = (_within(name, recursive) if name and Path(name).is_dir() else [name] for name in names)
    return list(dict.fromkeys(file for files in each for file in files))


def texts(files: Sequence[str]) -> list[tuple[str, str]]:
    """Return name and text of each file. A single file has no name, because messages need not tell it from others."""
    if len(files) == 1:
        return [("", source(files[0]))]
    return [(file, _named(file)) for file in files]


def documents(of: Iterable[tuple[str, str]]) -> list[Document]:
    """Cut texts into documents, each with the name of its file. Raises ``RequestError``."""
    return [document for file, text in of for document in _documents(file, text.removeprefix(BOM))]


def _within(folder: str, recursive: bool) -> list[str]:  # noqa: FBT001 - a flag of the command line, passed on
    files = sorted(file for file in _walk(folder, recursive) if file.suffix in SUFFIXES)
    if not files:
        inner = "" if recursive else "; to read its subfolders too, give -R"
        raise ConfigError(f"{folder} contains no file that ends in {', '.join(SUFFIXES)}{inner}")
    return [str(file) for file in files]


def _walk(folder: str, recursive: bool) -> Iterator[Path]:  # noqa: FBT001 - a flag of the command line, passed on
    for place, inner, files in os.walk(folder):
        yield from (Path(place, file) for file in files)
        if not recursive:
            inner.clear()


def _named(file: str) -> str:
    try:
        return source(file)
    except RequestError as error:
        raise RequestError(f"{file}: {error.message}", error.reason) from None


def _documents(file: str, text: str) -> list[Document]:
    try:
        return [replace(document, file=file) for document in split(text)]
    except RequestError as error:
        raise RequestError(f"{file}: {error.message}" if file else error.message, error.reason) from None
