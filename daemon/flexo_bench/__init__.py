"""Benchmarks: flexo beside its rivals and beside published figures (`make help` lists them as bench-*)."""
