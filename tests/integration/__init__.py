"""Tests that need a real control plane or real processes."""
