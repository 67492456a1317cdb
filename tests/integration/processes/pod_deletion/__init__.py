"""Pods that are deleted, with real processes."""
