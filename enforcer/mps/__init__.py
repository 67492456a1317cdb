"""MPS: the control daemons of a node's shared GPUs, how they are started, asked, healed and stopped."""
