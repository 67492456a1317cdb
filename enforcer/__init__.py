"""The enforcer: the process on each GPU node that publishes GPUs, prepares claims, and kills processes over quota."""
