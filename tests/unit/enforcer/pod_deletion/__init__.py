"""How containers come to their end."""
