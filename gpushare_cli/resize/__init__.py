"""``gpu-share resize``: another quota for a container that runs, within what its pod reserved."""
