"""A Kubernetes cluster of one node with gpu-share, carried to a machine with a GPU and run there by one command.

Everything is made here (``make``), unpacked there (``unpack``), and started in namespaces and a control group of its
own (``run``, ``worker``), so that a killed run leaves nothing. Of the kernel it needs namespaces and control groups:
pods have no network but the node's, file systems are copied, and the machine's own ``/usr`` is every container's.
"""
