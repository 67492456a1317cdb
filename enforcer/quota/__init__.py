"""enforcer/quota."""
