"""Detection: which containers are over quota, for how long, and when a kill is due."""
