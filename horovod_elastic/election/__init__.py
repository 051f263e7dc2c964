"""The election of leaders: a lease with compare-and-swap, and the servers that can keep it."""
