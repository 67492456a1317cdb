"""Serving: HTTP, TLS, gunicorn and AdmissionReview framing."""
