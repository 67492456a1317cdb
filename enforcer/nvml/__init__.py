"""NVML in a process of its own: a driver that crashes or hangs takes that process with it, and nothing else."""
