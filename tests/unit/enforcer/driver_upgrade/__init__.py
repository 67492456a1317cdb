"""Driver upgrades."""
