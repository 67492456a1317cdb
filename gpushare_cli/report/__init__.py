"""``gpu-share report``: GPU memory of each namespace in a month, and its kills, from Prometheus."""
