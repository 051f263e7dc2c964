"""Who leads: a lease with compare-and-swap, and the servers that it can be kept at."""
