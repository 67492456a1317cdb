"""What tests run on: clusters, nodes, and the lanes that run test files in parallel."""
