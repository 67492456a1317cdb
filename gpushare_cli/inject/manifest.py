"""Finding, reading and writing manifests: many documents in one text, each with its own bytes and its line.

A stream is cut at its ``---`` lines (YAML allows such a line nowhere inside a document), so a document that is not
rewritten leaves exactly as it came. JSON documents may follow one another in one piece, as ``kubectl`` writes them.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from gpushare.errors import ConfigError, RequestError
from gpushare.patterns import Pattern
from gpushare.quantity import quoted
from gpushare_cli.inject import kube_yaml
from gpushare_cli.inject.yaml_splice import patched

T = TypeVar("T")
STDIN: Final = "-"
BOM: Final = "\ufeff"
SUFFIXES: Final = (".json", ".yaml", ".yml")
"""What a manifest in a folder ends in, as for ``kubectl``."""
_SEPARATOR: Final = Pattern(r"---(?:[ \t\r\n]|\Z)", 4)
_LEAD: Final = Pattern(r"(?u:(?:---(?=\s|\Z))?(?:\s|#[^\n]*)*)", kube_yaml.MAX_BYTES)
"""What may stand before the content of a document: separator, white space, comments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a stream.

    ``text`` is its exact source, separator line included. ``node`` is the composed YAML, or the value of a JSON
    document in ``value``. ``line`` is where its content starts, counted from 1. ``file`` is empty where
    only one is read.
    """

    line: int
    text: str
    file: str = ""
    json: bool = False
    value: Any = None
    node: yaml.Node | None = None

    def place(self, number: int) -> str:
        """Name the document in a message; it is the one of that number in its file."""
        return f"{self.file}: document {number}" if self.file else f"document {number}"

    def top(self, key: str) -> str:
        """Return a top-level string such as ``kind`` without constructing the document; empty when absent."""
        if self.json:
            found = self.value.get(key) if isinstance(self.value, dict) else None
            return found if isinstance(found, str) else ""
        return kube_yaml.top(self.node, key)

    def load(self) -> Any:
        """Return the document as plain JSON data. Raises ``RequestError`` with the line of what cannot be."""
        return self.value if self.json else kube_yaml.construct(self.node)

    def render(self, operations: Sequence[Mapping[str, Any]], value: Any) -> str:
        """Write the document with a JSON patch applied: in its format, with its separator and its comments.

        Args:
            operations: of the patch.
            value: what the document is after it.
        """
        if self.json:
            return self.text[: _lead(self.text)] + json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        return self.spliced(operations, value) or self._dumped(value)

    def spliced(self, operations: Sequence[Mapping[str, Any]], value: Any) -> str | None:
        """Return the YAML text with a JSON patch applied in place; ``None`` where all of it has to be written again."""
        return patched(self.text, self.node, operations, value)

    def _dumped(self, value: Any) -> str:
        """Write the document without its comments, except those before its content."""
        lead = self.text[: _lead(self.text)].rstrip(" \t")
        newline = "\r\n" if "\r\n" in self.text else "\n"
        start = f"{lead}{newline}" if lead and not lead.endswith("\n") else lead
        return start + kube_yaml.dump(value).replace("\n", newline)


def read(source: bytes) -> str:
    """Decode a manifest. Raises ``RequestError`` where it is too long, or naming the line that is not text."""
    if len(source) > kube_yaml.MAX_BYTES:
        raise RequestError(f"the input has more than {kube_yaml.MAX_BYTES >> 20} MiB; split it into several files")
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise RequestError(
            f"line {line}: byte {source[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from None
    if "\0" in text:
        raise RequestError(
            f"line {text.count(chr(10), 0, text.index(chr(0))) + 1}: the input contains a NUL byte, "
            "so it is not a manifest"
        )
    return text


def split(text: str) -> list[Document]:
    """Cut a stream into documents, in order; the texts joined are the stream again.

    Raises:
        RequestError: something is neither YAML nor JSON, with its line.
    """
    documents: list[Document] = []
    for chunk, line in _chunks(text):
        documents += _documents(chunk, line)
    return documents


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    lines: list[str] = []
    start = 1
    for number, line in enumerate(text.split("\n"), 1):
        if _SEPARATOR.match(line[:4]) and lines:
            yield "".join(lines), start
            lines, start = [], number
        lines.append(line + "\n")
    yield "".join(lines)[:-1], start


def _documents(chunk: str, line: int) -> Iterator[Document]:
    start = _lead(chunk)
    if chunk.startswith("{", start):
        stream = list(_json(chunk, line, start))
        if stream:
            yield from stream
            return
    node = kube_yaml.parse(chunk, line)
    first = node.start_mark.line if node is not None else 0
    yield Document(line=line + first, text=chunk, node=node)


def _json(chunk: str, line: int, start: int) -> Iterator[Document]:
    """Yield the JSON documents of a chunk; none when it is YAML in braces after all."""
    position, begin = start, 0
    while position < len(chunk):
        try:
            value, end = _DECODER.raw_decode(chunk, position)
            _check_text(value, chunk)
        except json.JSONDecodeError:
            if begin:
                at = line + chunk.count("\n", 0, position)
                raise RequestError(
                    f"line {at}: the text after the JSON document is neither JSON nor a --- line"
                ) from None
            return
        except RecursionError:
            raise RequestError(f"line {line}: {kube_yaml.TOO_DEEP}") from None
        except RequestError as error:
            raise RequestError(f"line {line + chunk.count(chr(10), 0, position)}: {error.message}") from None
        end += len(chunk[end:]) - len(chunk[end:].lstrip())
        at = line + chunk.count("\n", 0, position)
        yield Document(line=at, text=chunk[begin:end], json=True, value=value)
        begin = position = end


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RequestError(f"the key {quoted(key)} occurs twice in one JSON object; remove one of the two")
        found[key] = value
    return found


def _constant(name: str) -> Any:
    raise RequestError(f"{name} is not JSON; write a number")


def _integer(digits: str) -> int:
    if len(digits) > kube_yaml.MAX_DIGITS:
        raise RequestError(kube_yaml.long_number(digits))
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise RequestError(kube_yaml.no_number(digits))
    return value


def _check_text(value: Any, chunk: str) -> None:
    """Refuse strings that cannot be written again as UTF-8."""
    if "\\ud" not in chunk and "\\uD" not in chunk:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError("the text contains an unpaired surrogate (\\ud800 to \\udfff); remove it") from None


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_int=_integer, parse_float=_float
)


def _lead(text: str) -> int:
    match = _LEAD.match(text)
    return match.end() if match else 0


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
    return [_of_file(file if files[1:] else "", source, file) for file in files]


def documents(of: Iterable[tuple[str, str]]) -> list[Document]:
    """Cut texts into documents, each with the name of its file. Raises ``RequestError``."""
    cut = [_of_file(file, split, text.removeprefix(BOM)) for file, text in of]
    return [replace(document, file=file) for file, found in cut for document in found]


def _within(folder: str, recursive: bool) -> list[str]:  # noqa: FBT001 - a flag of the command line, passed on
    inside = Path(folder).rglob("*") if recursive else Path(folder).iterdir()
    files = sorted(file for file in inside if file.suffix in SUFFIXES and not file.is_dir())
    if not files:
        inner = "" if recursive else "; to read its subfolders too, give -R"
        raise ConfigError(f"{folder} contains no file that ends in {', '.join(SUFFIXES)}{inner}")
    return [str(file) for file in files]


def _of_file(file: str, work: Callable[[str], T], what: str) -> tuple[str, T]:
    """Do something with a file; an error names it, if it has a name."""
    try:
        return file, work(what)
    except RequestError as error:
        raise RequestError(f"{file}: {error.message}" if file else error.message, error.reason) from None
