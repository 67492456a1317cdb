"""``gpu-share audit``: show, verify, export and follow the audit logs of nodes."""

from gpushare_cli.audit.arguments import add_parser

__all__ = ["add_parser"]
