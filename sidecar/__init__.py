"""The sidecar in each sharing pod: waits until the GPU is ready, reports the pod's state, serves metrics.

It imports little on purpose: a copy of it runs in every sharing pod.
"""
