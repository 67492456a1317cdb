"""A real Kubernetes control plane on loopback, from ready binaries or built here as Go modules."""
