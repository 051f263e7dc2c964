"""Jobs in virtual time as they run on Slurm: bases stay where Slurm starts them, and grow by satellites."""
