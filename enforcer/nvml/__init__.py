"""NVML, read by a child process: a driver that crashes or hangs ends that process and nothing else."""
