"""Finish-time fairness: what jobs took, over what each would have taken alone on its share of the cluster.

Mahajan et al., "Themis: Fair and efficient GPU cluster scheduling" (NSDI 2020), section 3. As in Sia's
evaluation (SOSP 2023, section 5), a job's share is one n-th of the GPUs. n is the mean number of jobs in the
system from its submission to its end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexo.model.nodes import Node
from flexo.model.training import NodeShare
from flexo_simulation.alone import alone_on_s
from flexo_simulation.records import JobRecord
from flexo_simulation.workload import TraceJob


@dataclass(frozen=True, slots=True)
class Fairness:
    """Figures of a simulation; nan: there is nothing to count."""

    worst: float
    """The largest ratio of any job that finished."""
    unfair_share: float
    """The share of these jobs whose ratio is above 1: they would have ended sooner alone on their share."""


def finish_time_fairness(records: Sequence[JobRecord], nodes: Sequence[Node]) -> Fairness:
    """The fairness of the jobs that finished, and had something to do.

    A job that its share of the GPUs is too small for takes turns.

    On a cluster of several GPU types, a job's time alone is the mean over the types that it may use, weighted
    by their GPUs.
    """
    finished = [record for record in records if record.jct_s]
    if not finished or not nodes:
        return Fairness(math.nan, math.nan)
    gpus = sum(node.gpus for node in nodes)
    by_type: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        by_type[node.gpu_type].append(node)
    alone = _Alone(by_type)
    times = [
        (record.jct_s or 0.0, alone.seconds(record.job, float(gpus) / others))
        for record, others in zip(finished, _jobs_beside(records, finished), strict=True)
        if record.job.shape.gpus
    ]
    ratios = np.array([took_s / alone_s for took_s, alone_s in times if alone_s])
    if not ratios.size:
        return Fairness(math.nan, math.nan)
    return Fairness(float(ratios.max()), float((ratios > 1).mean()))


def _jobs_beside(records: Sequence[JobRecord], of: Sequence[JobRecord]) -> NDArray[np.float64]:
    """Per job of `of`: the mean number of jobs, itself included, that were submitted and had not ended."""
    lives = [(record.job.submitted_at, record.ended_at) for record in records if record.ended_at is not None]
    times = np.array(lives, dtype=float)
    at = np.concatenate([times[:, 0], times[:, 1]])
    change = np.repeat([1.0, -1.0], len(lives))
    order = np.argsort(at, kind="stable")
    at, jobs = at[order], np.cumsum(change[order])
    job_seconds = np.concatenate([[0.0], np.cumsum(jobs[:-1] * np.diff(at))])
    begins = np.array([record.job.submitted_at for record in of])
    ends = np.array([record.ended_at for record in of], dtype=float)
    spent = np.interp(ends, at, job_seconds) - np.interp(begins, at, job_seconds)
    beside: NDArray[np.float64] = np.maximum(1.0, spent / np.maximum(1e-9, ends - begins))
    return beside


class _Alone:
    """The times that jobs take alone. Jobs of one training and share take the same."""

    def __init__(self, by_type: Mapping[str, Sequence[Node]]) -> None:
        self._by_type = by_type
        self._known: dict[tuple[int, str, int], float] = {}

    def seconds(self, job: TraceJob, share: float) -> float:
        """Seconds that `job` takes alone on `share` GPUs; infinite: it cannot train so."""
        each = float(job.shape.gpus)
        low, high = (
            (job.workers.min, job.workers.max)
            if job.workers.max > job.workers.min
            else (job.requested_workers, job.requested_workers)
        )
        workers = min(high, max(low, int(share / each)))
        turns = max(1.0, workers * each / share)
        times = [
            (self._on_type(job, name, workers), sum(float(node.gpus) for node in nodes))
            for name, nodes in self._by_type.items()
            if not job.shape.gpu_type or job.shape.gpu_type == name
        ]
        possible = [(seconds, gpus) for seconds, gpus in times if math.isfinite(seconds)]
        if not possible:
            return math.inf
        return turns * sum(seconds * gpus for seconds, gpus in possible) / sum(gpus for _, gpus in possible)

    def _on_type(self, job: TraceJob, gpu_type: str, workers: int) -> float:
        key = (id(job.training), gpu_type, workers)
        if key not in self._known:
            shares = tuple(_spread(self._by_type[gpu_type], workers, int(job.shape.gpus)))
            self._known[key] = alone_on_s(job.training, shares) if shares else math.inf
        return self._known[key]


def _spread(nodes: Sequence[Node], workers: int, each: int) -> Iterator[NodeShare]:
    """So many workers on as few nodes as possible; fewer if there is no room for them."""
    for node in sorted(nodes, key=lambda node: -node.gpus):
        here = min(workers, int(node.gpus) // each)
        if here:
            yield NodeShare(node.name, here)
        workers -= here
