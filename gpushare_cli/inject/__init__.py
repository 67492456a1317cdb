"""``gpu-share inject``: mutate manifests offline, as the webhook would."""

from gpushare_cli.inject.arguments import add_parser

__all__ = ["add_parser"]
