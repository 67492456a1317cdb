"""Containers that come to their end, with real processes."""
