"""enforcer/audit."""
