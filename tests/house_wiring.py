"""House rules of the enforcer's wiring: what a part needs is a constructor argument, and few of them are callables."""

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Final

PART: Final = "enforcer/"
MAX_CALLABLES: Final = 9
"""Constructor parameters that are callables or protocols of one method. It only goes down."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def wiring(trees: Mapping[str, str]) -> list[str]:
    """Return the breaches of all files, by path and text, as ``path:line: sentence``."""
    parsed = {path: ast.parse(text) for path, text in trees.items() if path.startswith(PART)}
    found = [*assigned(parsed)]
    callables = list(callable_parameters(parsed))
    if len(callables) > MAX_CALLABLES:
        found.append(
            f"{PART}:1: {len(callables)} constructor parameters are callables or protocols of one method, at most "
            f"{MAX_CALLABLES} may be; take a named type"
        )
    return found


def assigned(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Find where an attribute of an object is assigned from outside the module that declares it.

    A function may set attributes of an object that it has just made by a call, such as the options of a command line.
    """
    declared = {path: frozenset(_declared(tree)) for path, tree in trees.items()}
    everywhere = frozenset[str]().union(*declared.values())
    for path, tree in trees.items():
        for line, base, name in _assignments(tree):
            if name in everywhere - declared[path]:
                yield f"{path}:{line}: assigns {base}.{name} from outside; make it an argument of the constructor"


def callable_parameters(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield ``Class.parameter`` of each constructor parameter that is a callable or a protocol of one method."""
    names = {"Callable", *(name for tree in trees.values() for name in _like_callables(tree))}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not _is_protocol(node):
                for name, annotation in _parameters(node):
                    if any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(annotation)):
                        yield f"{node.name}.{name}"


def _assignments(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, object and attribute of each assignment to an attribute of another object than ``self``."""
    for function in (node for node in ast.walk(tree) if isinstance(node, Function)):
        made = {"self", "cls", *_made(function)}
        for target in _targets(function):
            base = ast.unparse(target.value)
            if base not in made:
                yield target.lineno, base, target.attr


def _targets(function: Function) -> Iterator[ast.Attribute]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def _made(function: Function) -> Iterator[str]:
    """Yield the variables that are bound to what a call returned."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))


def _declared(tree: ast.Module) -> Iterator[str]:
    """Yield the attributes of a module's classes: annotated in their bodies, or assigned to ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (each.target.id for each in node.body if isinstance(each, ast.AnnAssign)
                        and isinstance(each.target, ast.Name))  # fmt: skip
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _like_callables(tree: ast.Module) -> Iterator[str]:
    """Yield the names of aliases of ``Callable``, and of protocols with one method or attribute."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and _is_callable(node.value):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.ClassDef) and _is_protocol(node) and _members(node) == 1:
            yield node.name


def _members(node: ast.ClassDef) -> int:
    return sum(isinstance(each, Function | ast.AnnAssign) for each in node.body)


def _is_callable(value: ast.expr) -> bool:
    return isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Callable"


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(each) == "Protocol" for each in node.bases)


def _parameters(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield name and annotation of what a class is made from: a dataclass's fields, or ``__init__``'s parameters."""
    is_dataclass = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    for each in node.body:
        if is_dataclass and isinstance(each, ast.AnnAssign):
            yield ast.unparse(each.target), each.annotation
        elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
            arguments: Collection[ast.arg] = (*each.args.args, *each.args.kwonlyargs)
            yield from ((one.arg, one.annotation) for one in arguments if one.annotation is not None)
