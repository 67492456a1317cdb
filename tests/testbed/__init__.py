"""What tests run on: clusters, nodes, and the lanes that run them beside each other."""
