"""The small program in each sharing pod: holds the start until the GPU is ready, says what happens, counts.

It imports little on purpose: a copy of it runs in every sharing pod.
"""
