"""What tests run on: clusters, nodes, and the workers that run test files in parallel."""
