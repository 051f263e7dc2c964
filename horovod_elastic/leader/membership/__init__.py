"""The membership of a job: its workers, generation after generation. Pure: events in, commands out.

A *generation* is one set of workers with one communicator. The next generation is always built beside the
present one (change.py). Newcomers warm up alone, and build the new communicator together with the workers
that train. All workers switch at one mini-batch boundary; leaving workers end there. No worker waits for a
process that is still importing. Resizes are sequential: a request that comes during a resize waits.

When a member dies, the leader tells the other members at once to break their connections. They go back to
their last commit and wait. The next generation is built for them in the same way, but nobody trains
meanwhile.

A leader that takes over a running job learns all of this from the agents' reports on their workers.

Amoeba (Wu et al., "Elastic deep learning in multi-tenant GPU cluster"), sections 4 and 5.1, 5.2.
"""
