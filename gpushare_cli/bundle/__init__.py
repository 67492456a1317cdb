"""``gpu-share bundle``: one archive with what support needs to know of a cluster."""

from gpushare_cli.bundle.command import add_parser, run

__all__ = ["add_parser", "run"]
