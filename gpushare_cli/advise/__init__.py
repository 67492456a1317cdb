"""``gpu-share advise``: how much memory each workload should ask for, by the most that it used."""

from gpushare_cli.advise.arguments import add_parser

__all__ = ["add_parser"]
