"""Certificates: the webhook's certificate authority, its serving certificate, their rotation, and the CA bundle."""
