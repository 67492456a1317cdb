"""Tests that need a node in a virtual machine: ``make e2e ARGS=vm``."""
