"""Benchmark of flexod with thousands of nodes and tens of thousands of jobs (make bench-scale)."""
