"""Policies: pure functions, snapshot in, plan out. They know `model` and nothing else."""
