"""enforcer/detection."""
