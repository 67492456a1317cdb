"""Write plain data as YAML. Strings are quoted where any common reader would take them for something else."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import yaml

from gpushare_cli.inject.kube_yaml import is_plain

_ENDLESS: Final = float("inf")


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, and the dashes of a list below its key."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


class _Indented(_Dumper):
    """Writes the dashes of a list two columns to the right of its key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - PyYAML's
        super().increase_indent(flow, indentless=False)


def _string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None if is_plain(value) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _string)


def dump(value: Any) -> str:
    """Write an object or a list as YAML: block style, order of keys kept, long lines left long, no anchors."""
    return _written(_Dumper, value)


def lines(value: Any, *, indented: bool) -> list[str]:
    """Write a small object or list as the lines of a block; ``indented`` is whether lists stand right of their keys."""
    return _block(json.dumps(value), indented).removesuffix("\n").split("\n")


def flow(value: Any) -> str:
    """Write any small value in one line, as it may stand between braces."""
    return _flow(json.dumps(value))


@lru_cache(1024)
def _block(source: str, indented: bool) -> str:  # noqa: FBT001 - a key of the cache
    return _written(_Indented if indented else _Dumper, json.loads(source))


@lru_cache(1024)
def _flow(source: str) -> str:
    return _written(_Dumper, [json.loads(source)], in_line=True)[1:-2]


def _written(dumper: type[_Dumper], value: Mapping[str, Any] | list[Any], *, in_line: bool = False) -> str:
    return str(
        yaml.dump(value, None, dumper, default_flow_style=in_line, width=_ENDLESS, allow_unicode=True, sort_keys=False)
    )
