"""``gpu-share status``: what the containers of one pod use, from inside its sidecar."""
