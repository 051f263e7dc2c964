"""The demo of GPU sharing: two trainings on one pretended device, on a real Slurm cluster."""
