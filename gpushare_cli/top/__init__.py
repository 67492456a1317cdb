"""``gpu-share top``: GPUs, the containers on them, and their use: of a node, of all nodes, or of a namespace."""

from gpushare_cli.top.command import add_parser

__all__ = ["add_parser"]
