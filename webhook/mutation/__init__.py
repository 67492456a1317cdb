"""Mutation: the pure rewriting and validation of a pod; no I/O."""
