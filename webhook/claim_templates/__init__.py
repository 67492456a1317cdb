"""Claim templates: the controller that creates and removes the templates that admitted pods name."""
