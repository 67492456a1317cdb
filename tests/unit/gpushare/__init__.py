"""Unit tests of the shared vocabulary."""
