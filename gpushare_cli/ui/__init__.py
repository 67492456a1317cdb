"""``gpu-share ui``: a read-only web view of fleet, shares and kills, on the reader's own machine."""
