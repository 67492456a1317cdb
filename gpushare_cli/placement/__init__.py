"""Whether a share could start, and where; ``explain`` asks it of a pod."""
