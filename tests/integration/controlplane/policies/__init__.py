"""The shipped policies, met without the webhook."""
