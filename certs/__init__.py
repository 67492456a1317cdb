"""The certificate authority of the webhook, its serving pair, their rotation, and the bundle clients trust."""
