"""flexod's metrics for Prometheus: docs/monitoring.md has all of them in a table."""
