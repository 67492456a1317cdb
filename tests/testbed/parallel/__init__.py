"""``make integration`` and ``make e2e``: all tests that need a cluster, in workers beside each other."""
