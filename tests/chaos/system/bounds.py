"""How long what may take. Seconds; the first ones are the lab's own settings (slurm.conf, flexo.toml)."""

from __future__ import annotations

GRACE_S = 20.0
"""GraceTime of the partitions that satellites are in."""
KILL_WAIT_S = 10.0
UNKILLED_S = 30.0
"""Slurm looks so often after jobs whose time is over."""
SCHEDULING_S = 6.0
"""sched_interval and bf_interval, and a second for the epilog that the lab does not have."""
TIME_LIMIT_S = 60
"""Of a satellite; Slurm counts in minutes."""
BUSY_S = 15.0
"""Granted to a machine of two cores on which a dozen processes train and others work as well."""
TAKEN_BACK_S = GRACE_S + UNKILLED_S + KILL_WAIT_S + SCHEDULING_S + BUSY_S
"""From the moment when a job could start, but for preemptible ones, to its start: Slurm alone, at worst."""
OWNERLESS_S = TIME_LIMIT_S + 60.0 + GRACE_S + KILL_WAIT_S + BUSY_S
"""A satellite whose base is gone: its lease, OverTimeLimit's minute of Slurm's own clockwork, and its end."""
STANDS_STILL_S = 75.0
"""Between two mini-batches of a job whose own processes are hit: a silent worker is given up after 30 s, and
its agent or leader may go while the others wait for it."""
UNTOUCHED_STANDS_STILL_S = 25.0
"""Of a job none of whose processes is hit, whatever becomes of daemons and connections."""
RECOVERS_S = 60.0
"""After a hit on a job's process its workers may be fewer, or back at their last commit, for so long."""
CLOSED_S = 45.0
"""From inference's start on a lent server until the partition has lost it, flexod and Slurm undisturbed."""
UNDISTURBED_S = 15.0
"""After a daemon answers again, until it counts as undisturbed: leaders dial at most so much later."""
SLURM_FORGETS_S = 10.0
"""slurmctld writes its state down every few seconds: killed, it forgets which jobs came and ended since."""
WANTED_S = 90.0
"""A base may leave a lent server if inference came so shortly before: reclaim_s of the lab is 60 s."""
OVERLAP_S = 1.0
"""Two processes' lives on one GPU may overlap in their logs by so much: the clock of a busy machine."""
LONGEST_GAP_S = 2.0
"""Between two looks; of what a longer gap hides, no more is counted."""
