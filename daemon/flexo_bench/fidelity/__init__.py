"""make bench-fidelity: the same small workload on a real Slurm lab and in the simulator, side by side."""
