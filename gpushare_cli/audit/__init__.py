"""``gpu-share audit``: show, verify and export the audit logs of nodes."""
