"""Helpers shared by tests: certificates, a running webhook."""
