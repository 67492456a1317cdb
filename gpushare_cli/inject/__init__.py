"""``gpu-share inject``: mutate manifests offline, as the webhook would."""

from gpushare_cli.inject.command import add_parser, run

__all__ = ["add_parser", "run"]
