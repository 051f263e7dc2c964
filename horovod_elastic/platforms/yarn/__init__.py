"""A job on YARN. So far: its gang of containers for the fewest workers (docs/yarn.md)."""
