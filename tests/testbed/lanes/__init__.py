"""``make integration`` and ``make e2e``: all tests that need a cluster, in lanes beside each other."""
