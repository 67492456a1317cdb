"""``python -m tests.scale``: placement at scale on a real control plane, against hand-written claims and under harm."""
