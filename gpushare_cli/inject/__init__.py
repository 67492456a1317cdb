"""``gpu-share inject``: mutate manifests offline, as the webhook would."""
