"""Who trains with whom: the workers of one job, generation after generation. Pure: events in, commands out.

A *generation* is one set of workers with one communicator. The next generation is always built beside the
present one (change.py). Newcomers warm up alone and build the new communicator together with those who train.
Everybody switches at one mini-batch boundary; those who leave end there. Nobody waits for a process that is
still importing. Resizes are sequential: a request that comes during one waits for its turn.

When a member dies the leader tells the others at once to hang up. They go back to their last commit and wait.
The next generation is built for them in the same way, except that nobody trains meanwhile.

A leader that takes over a running job learns all of it from what agents report of their workers.

Amoeba (Wu et al., "Elastic deep learning in multi-tenant GPU cluster"), sections 4 and 5.1, 5.2.
"""
