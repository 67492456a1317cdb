"""House rules that ruff cannot check: short functions and files, pure modules, contract names once, wiring, size.

Run by ``make lint`` as ``python -m tests.house``. Prints one line per breach and, at the end, what the tree looks like.
"""

import ast
import re
import statistics
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enforcer.quota.kept_fields import TENANT_FIELDS
from tests import house_words
from tests.house_lines import growth
from tests.house_wiring import wiring

ROOT: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = ("gpushare", "gpushare_cli", "webhook", "enforcer", "sidecar", "certs")
ALL: Final = (*PRODUCT, "tests")
CONTRACT: Final = "gpushare/contract.py"
PATTERNS: Final = "gpushare/patterns.py"
"""The one module that compiles regular expressions: each with the length of what it may see."""
STATUS_READERS: Final = frozenset({
    "enforcer/quota/kept_fields.py", "enforcer/oom/diagnosis.py", "enforcer/pod_deletion/deadlines.py",
    "enforcer/dra/shared_claims.py",
})  # fmt: skip
"""Read a pod's status for messages to its owner, and to release the pod's own MPS clients."""
MAX_FUNCTION: Final = 50
MAX_FILE: Final = 400
MEDIAN_FUNCTION: Final = 8
GENERATED: Final = "_pb2"
PURE: Final = "Pure."
"""Ends the first paragraph of the docstring of a module that does no I/O, reads no clock and logs nothing."""
FOR_PURE: Final = frozenset({
    "base64", "collections", "csv", "dataclasses", "datetime", "difflib", "enum", "fractions", "functools", "hashlib",
    "heapq", "hmac", "http", "httptools", "io", "itertools", "json", "math", "operator", "orjson", "posixpath", "re",
    "sys", "typing",
})  # fmt: skip
"""All that pure modules import beside each other."""
NEVER_CALLED: Final = frozenset({
    "__import__", "eval", "exec", "input", "now", "open", "open_code", "print", "today", "utcnow",
})  # fmt: skip
"""By pure modules, as functions or as methods: input, output, clocks, and ways around this rule."""
MARKERS: Final = ("<" * 7, ">" * 7)
NAMESPACED: Final = ".namespace("
"""How CEL of a policy asks the authorizer about one namespace."""

_CONTRACT_NAME: Final = re.compile(r"gpu-share\.io\b|^CUDA_[A-Z_]+$|^CUDA_MPS_|^NVIDIA_[A-Z_]+$|^GPU_SHARE_.*_MIB$")

_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
"""A bare string that is the first in one of these is its docstring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function: where it stands, and the lines of its body without the docstring."""

    path: str
    line: int
    name: str
    length: int


def main() -> int:
    """Check the tree; return 1 when a rule is broken."""
    trees = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sources(ROOT)}
    breaches = [breach for path, text in trees.items() for breach in check(path, text)]
    breaches += impure(trees)
    breaches += wiring(trees)
    breaches += growth(trees)
    for path in texts(ROOT):
        breaches += check_text(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8", errors="replace"))
    for breach in breaches:
        print(breach)
    print(summary([one for path, text in trees.items() for one in functions(path, text)]))
    return 1 if breaches else 0


def sources(root: Path) -> Iterator[Path]:
    """Yield every Python file the rules are for."""
    for folder in ALL:
        yield from sorted(path for path in (root / folder).rglob("*.py") if GENERATED not in path.name)


def texts(root: Path) -> Iterator[Path]:
    """Yield every document, chart and setting."""
    for pattern in ("*", "docs/**/*", "deploy/**/*", "examples/**/*"):
        yield from sorted(path for path in root.glob(pattern) if path.is_file())


def check_text(path: str, text: str) -> list[str]:
    """Return the breaches of one file that is not Python: conflicts of a merge, private words and rights in charts."""
    lines = list(enumerate(text.splitlines(), 1))
    breaches = [f"{path}:{number}: unresolved merge conflict" for number, line in lines if line.startswith(MARKERS)]
    breaches += [
        f"{path}:{number}: asks for a permission in a namespace, which its owner has; ask for one in the cluster"
        for number, line in lines
        if path.startswith("deploy/") and NAMESPACED in line
    ]
    return breaches + house_words.breaches(path, text)


def check(path: str, text: str) -> list[str]:
    """Return the breaches of one file as ``path:line: sentence``."""
    lines = text.count("\n")
    breaches = [f"{path}:1: {lines} lines; a file stops at {MAX_FILE}"] if lines > MAX_FILE else []
    breaches += [
        f"{one.path}:{one.line}: {one.name} has {one.length} lines; a function stops at {MAX_FUNCTION}"
        for one in functions(path, text)
        if one.length > MAX_FUNCTION
    ]
    if _in_product(path) and path != CONTRACT:
        breaches += [f"{path}:{line}: {name!r} is spelled here; take it from {CONTRACT}" for line, name in names(text)]
    breaches += [
        f"{path}:{line}: a text that nothing uses; put the parts of one text in parentheses" for line in lost(text)
    ]
    breaches += house_words.breaches(path, text)
    if path.startswith("enforcer/") and path not in STATUS_READERS:
        breaches += [
            f"{path}:{line}: reads {name!r}, which tenants may write (enforcer/quota/kept_fields.py)"
            for line, name in _spelled(text, TENANT_FIELDS)
        ]
    if _in_product(path) and path != PATTERNS:
        breaches += [
            f"{path}:{line}: imports {name}; take a Pattern with its longest text from {PATTERNS}"
            for line, name in imports(text)
            if name.partition(".")[0] in {"re", "regex", "sre_compile"}
        ]
    return breaches


def impure(trees: Mapping[str, str]) -> list[str]:
    """Return what pure modules import that is not pure. They import only each other, so it holds for all they reach."""
    product = {path: text for path, text in trees.items() if _in_product(path)}
    marked = {path for path, text in product.items() if _first_paragraph(text).endswith(PURE)}
    allowed = {_module(path) for path in marked} | {
        _module(path) for path, text in product.items() if path.endswith("/__init__.py") and _is_empty(text)
    }
    modules = {_module(path) for path in product}
    return [
        f"{path}:{line}: a pure module {breach}"
        for path in sorted(marked)
        for line, breach in (*_imported(product[path], modules, allowed), *_called(product[path]))
    ]


def _imported(text: str, modules: Collection[str], allowed: Collection[str]) -> Iterator[tuple[int, str]]:
    for line, name in imports(text):
        ours = [each for each in _loaded(name) if each in modules]
        fine = all(each in allowed for each in ours) if ours else name.partition(".")[0] in FOR_PURE
        if not fine:
            yield line, f"imports {name}"


def _called(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in NEVER_CALLED:
                yield node.lineno, f"calls {name}"


def imports(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import, of ``from a import b`` ``a`` and ``a.b``, of ``from .`` a dot."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.level or node.module is None):
            yield node.lineno, "."
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, str(node.module)
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _spelled(text: str, words: Collection[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in words:
            yield node.lineno, node.value


def functions(path: str, text: str) -> list[Function]:
    """Return the functions of one file."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [Function(path=path, line=node.lineno, name=node.name, length=_length(node)) for node in found]


def names(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string, docstrings aside, that spells a name of the contract."""
    tree = ast.parse(text)
    prose = {id(part) for node in ast.walk(tree) for part in _prose(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or id(node) in prose:
            continue
        if _CONTRACT_NAME.search(node.value):
            yield node.lineno, node.value


def lost(text: str) -> Iterator[int]:
    """Yield the line of every bare string that describes nothing: mostly the rest of a text without parentheses."""
    for node in ast.walk(ast.parse(text)):
        before: ast.AST | None = None
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt):
                continue
            if _is_bare(child) and not (_takes_docstring(node, before) if before else isinstance(node, _DOCUMENTED)):
                yield child.lineno
            before = child


def summary(found: list[Function]) -> str:
    """Return one line on the lengths of functions."""
    if not found:
        return "no functions"
    product = [one.length for one in found if not one.path.startswith("tests/")] or [0]
    longest = max(found, key=lambda one: one.length)
    return (
        f"{len(found)} functions; product median {statistics.median(product):g} lines (aim {MEDIAN_FUNCTION}), "
        f"longest {longest.name} in {longest.path} with {longest.length}"
    )


def _is_bare(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _takes_docstring(around: ast.AST, statement: ast.AST) -> bool:
    """Constants of modules and classes have docstrings, in functions only attributes."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    return isinstance(around, ast.Module | ast.ClassDef) or isinstance(target, ast.Attribute)


def _in_product(path: str) -> bool:
    return path.split("/", maxsplit=1)[0] in PRODUCT


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_empty(text: str) -> bool:
    """Return whether a module has nothing but its docstring."""
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in ast.parse(text).body)


def _loaded(name: str) -> Iterator[str]:
    """Yield a dotted name and all packages around it, which an import runs as well."""
    parts = name.split(".")
    yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def _first_paragraph(text: str) -> str:
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _prose(node: ast.AST) -> Iterator[ast.AST]:
    """Bare strings: docstrings, also those that stand under a constant."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            yield child.value


if __name__ == "__main__":
    sys.exit(main())
