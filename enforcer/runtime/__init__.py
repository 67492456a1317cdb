"""enforcer/runtime."""
