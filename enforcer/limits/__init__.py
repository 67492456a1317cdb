"""Limits that prevent: which back end keeps them on each GPU, and those that are ours to set."""
