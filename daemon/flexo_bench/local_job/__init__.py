"""An elastic job on one machine without Slurm, for tests and benchmarks."""
