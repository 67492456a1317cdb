"""The fault matrix: each fault at each moment, an enforcer among real processes, and a checker that shares no code."""
