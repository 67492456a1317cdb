"""Helpers shared by tests: certificates, a running webhook, what to do about missing parts."""
