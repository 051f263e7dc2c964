"""An hour of jobs that come, grow, fail and leave, while Slurm and agents restart: does flexod grow?"""
