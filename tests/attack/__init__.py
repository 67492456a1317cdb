"""Attacks that were tried on the product, each as a test that it fails."""
