"""The kill log: its grammar, its files, and how they are kept whole."""
