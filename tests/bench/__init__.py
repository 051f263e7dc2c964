"""Benchmarks of the job runtime (make bench-runtime)."""
