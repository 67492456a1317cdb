"""The safety tests: what was done to make the killer wrong, each with its figure. ``make safety`` runs them in full."""
