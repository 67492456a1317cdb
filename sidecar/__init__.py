"""The sidecar in each sharing pod: waits for the GPU, reports the pod's state, serves metrics, and imports little."""
