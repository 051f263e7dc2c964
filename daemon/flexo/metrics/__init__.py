"""What Prometheus is told of flexod: docs/monitoring.md has all of it in a table."""
