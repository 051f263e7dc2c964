"""flexod's metrics for Prometheus: docs/reference/metrics.md has all of them in a table."""
