"""``gpu-share migrate``: rewrite what pods ask of other GPU systems, offline."""

from gpushare_cli.migrate.arguments import add_parser

__all__ = ["add_parser"]
