"""The whole product on a real Kubernetes node, installed by its chart; only the GPUs are simulated."""
