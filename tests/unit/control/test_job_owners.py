"""The event store knows whose each elastic job is, for as long as the job is in the queue and after."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from controller_world import ADA, slurm_job

from flexo.control.job_owners import JobOwners
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.queue import ElasticRequest, JobKey
from flexo.model.ranges import Range

DAY_S = 86_400.0


def test_a_job_that_outlasts_the_events_keeps_its_owner_also_in_the_flexod_that_saw_it_begin(
    tmp_path: Path,
) -> None:
    hours = count(0.0, 3600.0)
    store = EventStore(tmp_path / "journal.sqlite", keep_days=1, monotonic=lambda: next(hours))
    owners = JobOwners(store)
    queue = (slurm_job(7, elastic=ElasticRequest(Range(2, 8))),)
    for day in (0, 1, 2):
        owners.look(queue, day * DAY_S)
        store.record(day * DAY_S, (Event(day * DAY_S, "daemon", JobKey(99), "something else"),))
    found = store.owner_of(7)
    assert found is not None
    assert (found.owner, found.user) == (ADA, "ada")
    store.close()
