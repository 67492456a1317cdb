"""``gpu-share audit``: show, verify, export and follow the audit logs of nodes."""
