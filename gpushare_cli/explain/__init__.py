"""``gpu-share explain``: what was or would be done to a pod, and why."""

from gpushare_cli.explain.command import add_parser, run

__all__ = ["add_parser", "run"]
