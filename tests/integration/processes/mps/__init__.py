"""MPS control daemons, run for real: NVIDIA's own program, and the stand-in where clients are needed."""
