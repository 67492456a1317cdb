"""The demonstration behind ``make demo``: the real webhook and the real enforcer, with only the GPU simulated."""
