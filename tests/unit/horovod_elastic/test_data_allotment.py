"""What each rank takes: sizes of mini-batches, who keeps what, when everybody changes to a plan."""

from __future__ import annotations

import itertools

import pytest
from data_job import Job
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.data.allotment import (
    Allotment,
    Ledger,
    OutOfStep,
    Record,
    Whole,
)
from horovod_elastic.data.communicator import decode, encode
from horovod_elastic.ranges import Range, RangeSet, length

ranges = st.lists(st.builds(Range, st.integers(0, 10**12), st.integers(1, 10**9)), max_size=40).map(tuple)
records = st.builds(
    Record,
    epoch=st.integers(0, 1000),
    draw=st.integers(0, 10**6),
    left=st.integers(0, 10**12),
    opening=st.integers(0, 10**6),
    held_since=st.integers(-1, 10**6),
    batch_size=st.integers(1, 10**6),
    pace=st.integers(0, 10**9),
    settled=st.booleans(),
    held=ranges,
)


@given(st.lists(records, min_size=1, max_size=5))
def test_records_travel_as_numbers(told):
    numbers = [number for rank, record in enumerate(told) for number in encode(rank, record)]
    assert decode(numbers) == dict(enumerate(told))


def test_records_of_different_length_are_nearly_always_as_long():
    assert (
        len(encode(0, record()))
        == len(encode(0, record(held=[(0, 1)] * 8)))
        < len(encode(0, record(held=[(0, 1)] * 9)))
    )


def record(held=(), *, epoch=0, draw=0, left=100, opening=0, since=-1, batch_size=4, pace=0, settled=True):
    held = tuple(Range(*each) for each in held)
    return Record(epoch, draw, left, opening, since, batch_size, pace, settled, held)


def test_ranks_at_different_places_are_told_so():
    allotment = Allotment(Whole("train", 100, 10, 0), 4)
    with pytest.raises(OutOfStep, match=r"'train' \(rank 0: epoch 0, mini-batch 0.*rank 1: epoch 1"):
        allotment.resolve([record(), record(epoch=1)])


def test_a_newcomer_whose_state_lacks_the_dataset_is_told_so():
    allotment = Allotment(Whole("train", 100, 10, 0), 4)
    with pytest.raises(OutOfStep, match="TorchState"):
        allotment.resolve([record(left=60), record(left=100)])


def test_a_ledger_that_does_not_fit_is_refused():
    allotment = Allotment(Whole("train", 100, 10, 0), 4)
    for consumed in ([(90, 11)], [(0, 10), (5, 10)], [(-1, 3)]):
        with pytest.raises(ValueError, match="'train': the ledger"):
            allotment.load(Ledger(0, 0, tuple(Range(*each) for each in consumed)))


def test_more_cannot_be_trained_on_than_was_handed_out():
    with pytest.raises(ValueError, match="more mini-batches recorded"):
        Allotment(Whole("train", 100, 10, 0), 4).trained()


def test_while_the_leader_has_partitions_every_rank_reads_its_own_from_the_beginning_to_the_end():
    job = Job(samples=2000, batch_size=5, workers=3, partitions=40)
    job.finish_epoch()
    partition = 50
    ends = 0
    for rank in range(3):
        read = [piece for step in job.steps[:100] for piece in step[rank].ranges]
        for one, other in itertools.pairwise(read):
            if one.end % partition:
                ends += one.end != other.start  # left in the middle
            else:
                assert other.start % partition == 0
    assert ends == 0


def test_the_others_keep_what_they_hold_when_one_leaves():
    job = Job(samples=2000, batch_size=5, workers=3, partitions=40)
    for _ in range(20):
        job.step()
    expected = [worker.share.upcoming()[0] for worker in job.workers[:2]]
    job.resize(leave=[2])
    job.leader_away = True  # nobody has to wait for it
    job.step()
    assert [batch.ranges for batch in job.steps[-1]] == expected
    assert all(worker.share.allotment._plan is None for worker in job.workers)
    job.leader_away = False
    job.finish_epoch()


def test_the_others_keep_what_they_hold_when_one_comes():
    job = Job(samples=2000, batch_size=5, workers=2, partitions=40)
    for _ in range(20):
        job.step()
    expected = {worker.worker_id: worker.share.upcoming()[0] for worker in job.workers}
    job.resize(join=1)
    job.step()
    now = {worker.worker_id: batch.ranges for worker, batch in zip(job.workers, job.steps[-1], strict=True)}
    assert {worker: now[worker] for worker in expected} == expected
    job.finish_epoch()


def test_the_others_keep_what_they_hold_when_one_dies():
    job = Job(samples=2000, batch_size=5, workers=3, partitions=40)
    for _ in range(20):
        job.step()
    job.commit()
    expected = [worker.share.upcoming()[0] for worker in job.workers[:2]]
    job.crash([2])
    job.step()
    assert [batch.ranges for batch in job.steps[-1]] == expected
    job.finish_epoch()


def test_what_is_read_ahead_is_what_is_trained_on():
    job = Job(samples=2000, batch_size=5, workers=2, partitions=40)
    job.step()
    upcoming = [worker.share.upcoming() for worker in job.workers]
    assert [len(each) for each in upcoming] == [2, 2]
    job.step()
    job.step()
    for rank in range(2):
        assert [step[rank].ranges for step in job.steps[-2:]] == upcoming[rank]


def test_without_a_leader_what_is_read_ahead_is_what_is_trained_on_to_the_end_of_the_epoch():
    job = Job(samples=203, batch_size=5, workers=3, flexo=False)
    job.step()
    while not job.workers[0].share.allotment.is_over:
        upcoming = [worker.share.upcoming()[0] for worker in job.workers]
        job.step()
        assert [batch.ranges for batch in job.steps[-1]] == upcoming


def test_a_leader_that_hands_something_out_twice_is_noticed_before_it_is_trained_on():
    job = Job(samples=600, batch_size=5, workers=2, partitions=20)
    for _ in range(5):
        job.step()
    job.leader = type(job.leader)()  # forgets everything, and is told the ledger of the beginning only
    first = job.workers[0].share
    job.leader.ledger(first._client._ledger)
    planned = []
    while job.step():
        planned.append(first.allotment._plan is not None and first.allotment.samples_left >= 2 * 2 * 5)
    assert any(planned)


def test_a_leader_that_is_away_for_long_stops_nobody():
    job = Job(samples=600, batch_size=5, workers=3, partitions=20)
    job.step()
    job.leader_away = True
    job.finish_epoch()
    job.leader_away = False
    job.finish_epoch()
    assert [progress.epoch for progress in job.leader.progress()] == [1]


def test_a_new_leader_goes_on_where_the_old_one_was():
    job = Job(samples=2000, batch_size=5, workers=3, partitions=40)
    for _ in range(20):
        job.step()
    job.new_leader()
    for _ in range(40):
        job.step()
        assert all(worker.share.allotment._plan is None for worker in job.workers)
    job.finish_epoch()


def test_workers_that_want_different_sizes_take_the_smallest():
    job = Job(samples=600, batch_size=6, workers=2)
    job.step()
    job.workers[1].share.allotment.batch_size = 3
    job.step()  # announced before
    job.step()
    assert [[length(batch.ranges) for batch in step] for step in job.steps] == [[6, 6], [6, 6], [3, 3]]
    job.finish_epoch()


def test_a_size_set_between_generations_counts_at_once():
    job = Job(samples=600, batch_size=6, workers=2)
    job.step()
    job.resize(join=1)
    for worker in job.workers:
        worker.share.allotment.batch_size = 4
    job.step()
    assert [length(batch.ranges) for batch in job.steps[-1]] == [4, 4, 4]
    job.finish_epoch()


def test_more_workers_than_samples_repeat_one_with_no_weight():
    job = Job(samples=3, batch_size=4, workers=5)
    assert job.finish_epoch() == 1
    weights = sorted(batch.weight for batch in job.steps[0])
    assert weights == [0, 0, 5 / 3, 5 / 3, 5 / 3]
    assert all(length(batch.ranges) == 1 for batch in job.steps[0])


def test_weights_make_all_samples_count_alike():
    job = Job(samples=47, batch_size=10, workers=3)
    job.finish_epoch()
    for step in job.steps:
        sizes = [length(batch.ranges) for batch in step]
        assert [batch.weight for batch in step] == [size * 3 / sum(sizes) for size in sizes]


def test_faster_workers_take_more_in_every_mini_batch_and_all_samples_count_alike():
    job = Job(samples=1000, batch_size=8, workers=3, partitions=20, speeds=[3.0, 1.0, 1.0])
    steps = job.finish_epoch()
    sizes = [[length(batch.ranges) for batch in step] for step in job.steps]
    full = 1000 // 24 - 1
    assert sizes[:full] == [[14, 5, 5]] * full, "24 samples in parts of 3 to 1 to 1"
    assert len(sizes) == steps == full + 2
    assert all(fast > one >= other for fast, one, other in sizes)
    for step in job.steps:
        of_all = sum(length(batch.ranges) for batch in step)
        assert [batch.weight for batch in step] == [length(batch.ranges) * 3 / of_all for batch in step]


def test_a_worker_that_comes_with_another_gpu_makes_the_sizes_uneven_and_its_leaving_even():
    job = Job(samples=2000, batch_size=6, workers=2, partitions=40, speeds=[1.0, 1.0, 0.5])
    job.step()
    job.resize(join=1)
    job.step()
    job.step()
    job.resize(leave=[2] if job.workers[2].session.speed == 0.5 else [1])
    job.step()
    sizes = [sorted(length(batch.ranges) for batch in step) for step in job.steps]
    assert sizes == [[6, 6], [4, 7, 7], [4, 7, 7], [6, 6]]
    assert all(worker.share.allotment._plan is None for worker in job.workers)
    job.finish_epoch()


def test_speeds_that_become_known_in_the_middle_count_from_the_next_but_one_and_without_a_plan():
    job = Job(samples=2000, batch_size=6, workers=2, partitions=40)
    job.step()
    for worker, speed in zip(job.workers, (2.0, 1.0), strict=True):
        worker.session.speed = speed
    for _ in range(30):
        job.step()
    sizes = [[length(batch.ranges) for batch in step] for step in job.steps]
    assert sizes[:3] == [[6, 6], [6, 6], [8, 4]]
    assert sizes[3:] == [[8, 4]] * 28
    assert all(worker.share.allotment._plan is None for worker in job.workers)
    job.finish_epoch()


def test_what_is_read_ahead_is_what_is_trained_on_with_uneven_sizes_too():
    job = Job(samples=2000, batch_size=6, workers=2, partitions=40, speeds=[2.0, 1.0])
    job.step()
    upcoming = [worker.share.upcoming() for worker in job.workers]
    assert [[length(batch) for batch in each] for each in upcoming] == [[8, 8], [4, 4]]
    job.step()
    job.step()
    for rank in range(2):
        assert [step[rank].ranges for step in job.steps[-2:]] == upcoming[rank]


def test_a_leader_that_is_away_for_long_leaves_a_plan_by_speed():
    job = Job(samples=600, batch_size=6, workers=2, partitions=20, speeds=[2.0, 1.0])
    job.step()
    job.leader_away = True
    job.finish_epoch()
    assert [[length(batch.ranges) for batch in step] for step in job.steps[:40]] == [[8, 4]] * 40


def test_a_crash_goes_back_to_the_commit_and_no_further():
    job = Job(samples=600, batch_size=5, workers=3, partitions=20)
    for _ in range(6):
        job.step()
    job.commit()
    for _ in range(3):
        job.step()
    job.crash([1])
    ledger = job.workers[0].share.allotment.ledger()
    assert RangeSet(ledger.consumed).total == 6 * 15
    job.finish_epoch()


def test_an_epoch_that_was_committed_to_its_end_is_not_begun_again():
    job = Job(samples=40, batch_size=5, workers=2)
    while not job.workers[0].share.allotment.is_over:
        job.step()
    job.commit()
    job.resize(join=1)
    assert job.step() is False  # at once, and the next epoch begins
    assert job.workers[0].share.allotment.epoch == 1
