"""The command line ``gpu-share`` (also ``kubectl gpu-share``): people's verbs, and the door to the processes.

Each verb is a module with ``add_parser(subparsers)`` and ``run(args) -> exit code``; only the verb that was asked for
is imported. Exit codes: 0 fine, 1 the thing asked about is not fine, 2 wrong use.
"""
