"""flexod's metrics for Prometheus: docs/howto/monitoring.md has all of them in a table."""
