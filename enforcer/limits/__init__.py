"""Limits: which limit backend keeps each share, and the verification that a limit is in force."""
