"""``gpu-share explain``."""

from gpushare_cli.explain.command import add_parser, run

__all__ = ["add_parser", "run"]
