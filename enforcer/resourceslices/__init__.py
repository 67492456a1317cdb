"""ResourceSlices: which GPUs this node publishes, which it excludes, and their health."""
