"""GPU OOM diagnosis: why a program that failed for lack of GPU memory did so."""
