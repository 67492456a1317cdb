"""``gpu-share explain``: what was or would be done to a pod, and why."""

from gpushare_cli.explain.arguments import add_parser

__all__ = ["add_parser"]
