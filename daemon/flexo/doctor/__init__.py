"""Examines whether a cluster is set up for flexo: looks at Slurm, MUNGE and flexod, and says how to fix
errors.

Each file judges one group of things in pure functions of the answers; `examination` reads and joins them. The
doctor changes nothing and submits no job.
"""
