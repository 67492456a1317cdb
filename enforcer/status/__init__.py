"""enforcer/status."""
