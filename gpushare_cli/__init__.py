"""The ``gpu-share`` command line: one module or folder for each verb."""
