"""Driver upgrades by the GPU Operator: evict the pods that share GPUs, then release the kernel module."""
