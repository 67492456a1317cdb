"""enforcer/resourceslices."""
