"""Runtime helpers: background tasks, files, locks, capabilities and log output."""
