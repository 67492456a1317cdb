"""Unit tests of the webhook."""
