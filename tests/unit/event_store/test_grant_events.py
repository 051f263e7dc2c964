"""What an event changes of its job's grants, from the sentences that flexod writes."""

from __future__ import annotations

import pytest

from flexo.control.events import of_action
from flexo.event_store.grant_events import GrantChange, change_of
from flexo.grants import ReconciledState
from flexo.model.plans import Grow
from flexo.model.queue import JobKey


@pytest.mark.parametrize(("workers", "would", "begins"), [(1, "", True), (3, "", True), (3, "would ", False)])
def test_the_event_of_a_grant_names_node_and_workers_unless_it_is_a_dry_run(
    workers: int, would: str, begins: bool
) -> None:
    event = of_action(
        Grow(JobKey(7), "t2", workers, "flex", "t2 has idle GPUs"), ReconciledState((), (), ()), 5.0, would
    )
    expected = GrantChange("t2", workers, True) if begins else None
    assert change_of(event.kind, event.text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "change"),
    [
        ("adopt", "satellite 12 with 2 workers on t4 is taken over", GrantChange("t4", 2, True, 12)),
        ("shrink", "give back 2 workers on t6: pending job 9", GrantChange("t6", 2, False)),
        ("failure", "1 worker on t5: not started: Resources", GrantChange("t5", 1, False)),
        ("left", "satellite 11 with 2 workers has left t3", GrantChange("t3", 2, False, 11)),
        ("left", "satellite 11 with 2 workers has left t3: its job ends", GrantChange("t3", 2, False, 11)),
        ("lost", "satellite 11 with 1 worker has left t3, unasked", GrantChange("t3", 1, False, 11)),
        ("left", "satellite 11 with an Aggregator has left t3", None),
        ("grow", f"grow by {'9' * 5000} workers on t3: a damaged file", None),
        ("scale", "grow by 2 workers on t3: of another kind", None),
    ],
)
def test_an_event_begins_or_ends_the_grant_that_its_sentence_names(
    kind: str, text: str, change: GrantChange | None
) -> None:
    assert change_of(kind, text) == change
