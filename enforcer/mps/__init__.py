"""MPS: the control daemons of shared GPUs, their supervision, their clients and their logs."""
