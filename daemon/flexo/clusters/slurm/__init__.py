"""A Slurm cluster behind flexo's `Cluster` interface."""
