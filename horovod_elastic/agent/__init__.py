"""The agent: one process for each node of a job. It starts and watches the node's workers, and leads the job
while it holds the leader lease.
"""
