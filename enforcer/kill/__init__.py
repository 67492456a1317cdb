"""The kill: pin a process, recheck it, signal it, confirm its exit, under a circuit breaker."""
