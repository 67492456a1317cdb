"""Stand-ins for what this machine lacks."""
