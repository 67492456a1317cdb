"""``gpu-share ui``: a read-only web view of fleet, shares and kills, on the reader's own machine."""

from gpushare_cli.ui.arguments import add_parser

__all__ = ["add_parser"]
