"""Leader leases, of jobs and of flexods: one value, one interface for stores, and the rules."""
