"""Pods that are deleted."""
