"""What a worker counts as committed: what it could come back to if its generation broke now."""

from __future__ import annotations

from horovod_elastic.worker.participant_state import ParticipantState


def test_what_was_received_counts_once_it_is_saved_with_the_first_commit() -> None:
    part = ParticipantState()
    part.begins(7, saved=False)
    assert part.commits == 0
    part.committed()
    assert part.commits == 8
    part.committed()
    assert part.commits == 9


def test_it_counts_as_well_if_it_is_saved_between_two_commits() -> None:
    part = ParticipantState()
    part.begins(7, saved=False)
    part.has_saved()
    assert part.commits == 7
    part.has_saved()
    assert part.commits == 7


def test_who_has_saved_it_goes_on_counting() -> None:
    part = ParticipantState()
    part.begins(7, saved=True)
    assert part.commits == 7
    part.committed()
    assert part.commits == 8


def test_a_break_before_the_first_commit_leaves_nothing_to_come_back_to() -> None:
    part = ParticipantState()
    part.begins(7, saved=False)
    part.go_back()
    part.has_saved()
    assert part.commits == 0
