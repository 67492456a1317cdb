"""``gpu-share explain``: what was or would be done to a pod, and why."""
