"""``gpu-share top``: GPUs, the containers on them, and their use: of a node, of all nodes, or of a namespace."""
