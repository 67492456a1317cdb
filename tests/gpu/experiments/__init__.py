"""One file per experiment; ``tests.gpu.kit.registry`` finds them all."""
