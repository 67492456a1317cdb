"""The kubelet side of Dynamic Resource Allocation: claims prepared for pods of this node, and undone again."""
