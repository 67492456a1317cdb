"""Benchmarks, placement at scale and the placement simulator."""
