"""Benchmarks of flexo against its rivals and published figures (`make help` lists them as bench-*)."""
