"""Is this cluster set up for flexo? Looks at Slurm, MUNGE and flexod, and says how to fix what is wrong.

Each file judges one group of things in pure functions of what was read; `examination` reads and joins them.
Nothing is changed, and no job is submitted.
"""
