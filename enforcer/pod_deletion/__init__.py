"""Pod deletion: release the MPS clients of terminating pods before the kubelet kills them."""
