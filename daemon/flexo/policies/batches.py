"""How large a whole job's batch should be for its number of workers. Pure."""

from __future__ import annotations

from flexo.model.elastic import ElasticJob


def batch_of(job: ElasticJob, workers: int) -> int | None:
    """Samples of all `workers` in a step; None for a job that accepts no other batch than its script's.

    The batch a worker stays what it is at the job's minimum: the smallest batch on the fewest workers, and
    in proportion up to the largest. So a step takes about as long at any size, while its communication is
    paid for by more samples. (IBM, section III, reads `b` in the same way: the batch of the whole job,
    within [min, max].)
    """
    if job.batch is None:
        return None
    return job.batch.clamp(job.batch.min * workers // job.workers.min)
