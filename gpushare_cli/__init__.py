"""gpushare_cli."""
