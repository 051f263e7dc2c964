"""Policies say what jobs shall have; planners find places for it. They know `model` and nothing else."""
