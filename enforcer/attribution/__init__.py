"""enforcer/attribution."""
