"""Reviews that are expensive to answer: known families, and a search for worse ones."""
