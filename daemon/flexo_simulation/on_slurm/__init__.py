"""Simulates jobs as they run on Slurm: bases stay where Slurm starts them, and jobs grow by satellites."""
