"""Quotas: what each container may use, read from claims, pods and namespaces, and each GPU's sharing mode."""
