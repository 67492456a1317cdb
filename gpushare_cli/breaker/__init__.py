"""``gpu-share breaker``: whether the circuit breaker of a node, or of all nodes, is open, and how it is closed."""
