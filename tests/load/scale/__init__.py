"""``python -m tests.load.scale``: placement on a real control plane, against hand-written claims, under faults."""
