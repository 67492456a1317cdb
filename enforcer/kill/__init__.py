"""enforcer/kill."""
