"""``gpu-share bundle``: one archive with what support needs to know of a cluster."""

from gpushare_cli.bundle.arguments import add_parser

__all__ = ["add_parser"]
