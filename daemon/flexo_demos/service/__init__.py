"""The demo of pool Aggregators: two trainings share one, processes are killed, on a real Slurm cluster."""
