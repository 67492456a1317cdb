"""Ending processes over their quota: whom, in which order, step by step, and on record."""
