"""``gpu-share migrate``: rewrite what pods ask of other GPU systems, offline."""
