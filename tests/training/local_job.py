"""The local job, under the name by which tests import it."""

from flexo_bench.local_job.job import BASE, BOUND_S, LocalJob, job_of, local_job, train_at

__all__ = ["BASE", "BOUND_S", "LocalJob", "job_of", "local_job", "train_at"]
