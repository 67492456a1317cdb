"""``gpu-share bundle``: one archive with what support needs to know of a cluster."""
