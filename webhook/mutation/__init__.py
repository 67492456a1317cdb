"""webhook/mutation."""
