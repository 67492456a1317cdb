"""A GPU simulator: everything above the driver is real, only the card is a folder of small text files.

``machines/*.machine`` describe nodes as data; ``state.Sim`` is such a node coming to life in a folder; ``nvml.c`` and
``sim_nvml.py`` are two libraries that show this folder to nvidia-ml-py's callers; ``tenant.py`` plays a CUDA program,
and ``cuda.c`` is a driver for real ones. What nobody knows of real hardware is a switch in ``world.py``.
"""
