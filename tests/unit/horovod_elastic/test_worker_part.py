"""What a worker counts as committed, and when it is on its way into a generation."""

from __future__ import annotations

from horovod_elastic.worker.participant_state import Called, ParticipantState


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


def test_a_worker_is_going_from_the_word_until_it_has_entered() -> None:
    """Else the leader would take a report from in between for one of a worker that comes back again."""
    part = ParticipantState()
    part.go_back()
    part.given(Called(4))
    assert part.going
    assert part.take_call() == Called(4)
    assert part.going
    part.enter(Called(4), rank=0, size=1)
    assert not part.going


def test_a_worker_that_cannot_enter_waits_to_be_called_again() -> None:
    part = ParticipantState()
    part.wait_ready()
    part.given(Called(4))
    part.take_call()
    part.go_back()
    assert not part.going
    assert part.called == 4
