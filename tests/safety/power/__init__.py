"""Power cuts: an enforcer in a virtual machine whose power fails while it kills and while claims come and go."""
