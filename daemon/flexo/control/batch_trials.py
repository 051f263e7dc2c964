"""Keeps the trials of jobs with several batches, and makes speeds of them and the cluster's all-reduces.

This is IBM's job scalability analyzer on a cluster (`scalability.jsa`). Trials are remembered by script, so
that the next job of the same script needs none. Leaders report the trials, and nothing of that is verified.
So a user's trials count for the user's own jobs alone, and flexod bounds the number of scripts of a user.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from flexo.control.state_store import StateStore
from flexo.model.elastic import ElasticJob, LeaderReport
from flexo.model.measured import BatchTime, ScriptKey, Speed, TriedBatches, TriedScript
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.trusted_file import NotTrusted, read_trusted
from flexo_protos.all_reduce_file import AllReduceTable, BadAllReduceFile, parse

MOST_OF_A_USER: Final = 64
"""The most scripts of one user. One more replaces the user's oldest."""
_LEAST_TIMES: Final = 2
"""The fewest batches whose times say how the time of a step depends on the batch."""


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """Whether a job is to try several batches when it begins."""

    wanted: bool = False
    known_weights: int = 0
    """The weights of the model of its script that was tried before; 0: none was."""


def read_all_reduce(path: Path) -> AllReduceTable:
    """The cluster's all-reduces in a file that nobody else can write. Raises BadAllReduceFile."""
    try:
        return parse(read_trusted(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadAllReduceFile(f"it cannot be read: {error}") from error
    except NotTrusted as error:
        raise BadAllReduceFile(str(error)) from error


class BatchTrials:
    """The trials of all scripts and running jobs. `known_weights` may be called from any thread."""

    def __init__(self, event_store: StateStore) -> None:
        self._event_store = event_store
        self._lock = threading.Lock()
        self._scripts = {each.script: each for each in event_store.tried_scripts()}
        self._jobs: dict[JobKey, tuple[ScriptKey, TriedBatches]] = {}
        """The script of each running job that has reported its model, and the report."""

    def known_weights(self, script: ScriptKey) -> int:
        """The weights of the model of this script whose times are known; 0: none are."""
        with self._lock:
            known = self._scripts.get(script)
        return known.tried.weights if known else 0

    def see(self, jobs: Iterable[ElasticJob], reports: Mapping[JobKey, LeaderReport], now: float) -> None:
        """Process one poll. The trials of a job whose leader is away are not forgotten as long as it runs."""
        before, self._jobs = self._jobs, {}
        for job in jobs:
            report = reports.get(job.key)
            if report is not None and report.tried is not None:
                script = ScriptKey(job.user, report.script, report.shape.gpu_type)
                self._jobs[job.key] = script, report.tried
                if before.get(job.key) != self._jobs[job.key]:
                    self._remember(script, report.tried, now)
            elif job.key in before:
                self._jobs[job.key] = before[job.key]

    def speeds(self, jobs: Iterable[ElasticJob], all_reduce: AllReduceTable) -> dict[JobKey, Speed]:
        """The speeds of the jobs that accept several batches, and whose model was tried."""
        found: dict[JobKey, Speed] = {}
        for job in jobs:
            known = self._jobs.get(job.key)
            if known is None or job.batch is None:
                continue
            tried = self._complete(*known)
            if len(tried.times) >= _LEAST_TIMES and tried.largest:
                found[job.key] = speed_of(tried.times, tried.weights, tried.largest, job.batch, all_reduce)
        return found

    def _complete(self, script: ScriptKey, tried: TriedBatches) -> TriedBatches:
        """`tried`, or the remembered trials of the same model if the job has made none of its own."""
        with self._lock:
            known = self._scripts.get(script)
        if tried.times or known is None or known.tried.weights != tried.weights:
            return tried
        return known.tried

    def _remember(self, script: ScriptKey, tried: TriedBatches, now: float) -> None:
        if not script.digest or len(tried.times) < _LEAST_TIMES:
            return
        dropped: list[ScriptKey] = []
        with self._lock:
            self._scripts[script] = TriedScript(script, tried, now)
            own = sorted(
                (each for each in self._scripts.values() if each.script.user == script.user),
                key=lambda each: each.at,
            )
            dropped = [each.script for each in own[: max(0, len(own) - MOST_OF_A_USER)]]
            for each in dropped:
                del self._scripts[each]
        self._event_store.set_tried_script(TriedScript(script, tried, now), dropped)


@lru_cache(maxsize=4096)  # policies cache by the speed itself, so that equal inputs have to give the same one
def speed_of(
    times: tuple[BatchTime, ...], weights: int, largest: int, batch: Range, all_reduce: AllReduceTable
) -> Speed:
    """The speed of a job with these trials (at least one) on a cluster with these all-reduces.

    `batch`: the aggregate batches that the job accepts. Raises no error for times above 0.
    """
    from flexo.scalability.jsa import AllReduceTimes, JobScalability, ProcessingTimes  # imports NumPy

    processing = ProcessingTimes(tuple(each.samples for each in times), tuple(each.step_s for each in times))
    exchange = AllReduceTimes(all_reduce.workers, all_reduce.weights, all_reduce.seconds)
    return JobScalability(processing, exchange, float(weights), batch, largest)
