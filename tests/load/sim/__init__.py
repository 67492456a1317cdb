"""A simulator of placement: the stock scheduler's own rule for our shares, on fleets larger than a test bed holds."""
