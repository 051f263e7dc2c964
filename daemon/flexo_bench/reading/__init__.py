"""Benchmark of the two ways to read a Slurm cluster: Slurm's commands and pyslurm (make bench-reading)."""
