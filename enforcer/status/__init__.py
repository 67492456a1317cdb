"""Status: node status, pod status, Events, messages and metrics."""
