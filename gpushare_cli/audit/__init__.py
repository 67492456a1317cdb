"""``gpu-share audit``: show, verify, export and follow the audit logs of nodes."""

from gpushare_cli.audit.command import add_parser, run

__all__ = ["add_parser", "run"]
