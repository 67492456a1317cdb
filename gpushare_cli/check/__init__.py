"""``gpu-share check``: whether this machine and this cluster are ready."""
