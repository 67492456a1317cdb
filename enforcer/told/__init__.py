"""What people are told: tenants in Events and status files, operators in ``status.json``."""
