"""The jobs of a simulated cluster in the order of submission, changed one at a time and read as a whole.

A list has the jobs, and a dictionary their order of arrival. Copying a tuple of thousands of waiting jobs
from a list is several times as fast as from a dictionary, and that happens at every event.
"""

from __future__ import annotations

from bisect import bisect_left

from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob


class Queue:
    """The queue. Mutable. The time to find a job grows with the logarithm of the number of jobs."""

    def __init__(self) -> None:
        self._arrival: dict[JobKey, int] = {}
        self._arrivals: list[int] = []
        self._list: list[TrainingJob] = []
        self._added = 0
        self._tuple: tuple[TrainingJob, ...] | None = None

    @property
    def jobs(self) -> tuple[TrainingJob, ...]:
        """All jobs, in the order of submission."""
        if self._tuple is None:
            self._tuple = tuple(self._list)
        return self._tuple

    def get(self, key: JobKey) -> TrainingJob | None:
        """The job, or None if it is not here."""
        return self._list[self._place(key)] if key in self._arrival else None

    def add(self, job: TrainingJob) -> None:
        """Put a new job at the end."""
        self._added += 1
        self._arrival[job.key] = self._added
        self._arrivals.append(self._added)
        self._list.append(job)
        self._tuple = None

    def replace(self, job: TrainingJob) -> None:
        """Replace the job with the key of `job`."""
        self._list[self._place(job.key)] = job
        self._tuple = None

    def remove(self, key: JobKey) -> TrainingJob:
        """Take a job out."""
        place = self._place(key)
        del self._arrival[key], self._arrivals[place]
        self._tuple = None
        return self._list.pop(place)

    def _place(self, key: JobKey) -> int:
        return bisect_left(self._arrivals, self._arrival[key])
