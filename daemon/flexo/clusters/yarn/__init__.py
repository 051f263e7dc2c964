"""A YARN cluster behind flexo's `Cluster` interface."""
