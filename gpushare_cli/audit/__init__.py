"""``gpu-share audit``."""

from gpushare_cli.audit.command import add_parser, run

__all__ = ["add_parser", "run"]
