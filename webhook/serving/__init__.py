"""webhook/serving."""
