"""enforcer/pod_deletion."""
