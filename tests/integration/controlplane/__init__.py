"""The product on a real control plane: nodes are API objects, and the tests play the kubelet."""
