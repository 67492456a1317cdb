"""Messages of four kubelet services, from our own minimal ``.proto`` files: ``make protos`` writes them again.

Only what is used is declared. Names and numbers are those of the Go module ``k8s.io/kubelet`` v0.37.1.
"""
