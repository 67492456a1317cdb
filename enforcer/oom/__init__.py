"""enforcer/oom."""
