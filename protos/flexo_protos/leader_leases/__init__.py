"""Leader leases, of jobs and of flexods: one value, one interface of stores, and the rules."""
