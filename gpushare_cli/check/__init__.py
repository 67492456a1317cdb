"""``gpu-share check``: whether this machine and this cluster are ready."""

from gpushare_cli.check.arguments import add_parser

__all__ = ["add_parser"]
