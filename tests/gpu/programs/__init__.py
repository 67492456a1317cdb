"""Programs of frameworks for a machine that has them."""
