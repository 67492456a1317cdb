"""What of this node's GPUs is offered: whose they are, what is free, and the ResourceSlices that say so."""
