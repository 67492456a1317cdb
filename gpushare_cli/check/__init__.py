"""``gpu-share check``: whether this machine and this cluster are ready."""

from gpushare_cli.check.command import add_parser, run

__all__ = ["add_parser", "run"]
