"""``gpu-share check``."""

from gpushare_cli.check.command import add_parser, run

__all__ = ["add_parser", "run"]
