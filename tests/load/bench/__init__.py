"""Times the webhook alone: the real server over TLS, no API server. ``make bench``."""
