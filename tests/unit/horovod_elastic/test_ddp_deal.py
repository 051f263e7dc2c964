"""How an epoch's samples are dealt out to workers whose number changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.worker.ddp.deal import BatchRule, Deal

workers = st.integers(1, 9)
deals = st.builds(
    Deal,
    samples=st.integers(1, 400),
    per_worker=st.integers(1, 9),
    base=workers,
    drop_last=st.booleans(),
    rule=st.sampled_from(BatchRule),
    even=st.booleans(),
    is_longer=st.booleans(),
)


def an_epoch(deal: Deal, sizes: list[int]) -> list[tuple[int, list[int]]]:
    """Each step: its workers, and the places in the order that they have used together."""
    steps, start, turn = [], 0, 0
    while deal.steps(start, size := sizes[turn % len(sizes)]):
        places = [place for rank in range(size) for place in deal.share(start, rank, size).places]
        steps.append((size, places))
        start, turn = deal.end(start, size), turn + 1
    return steps


@given(deals, st.lists(workers, min_size=1, max_size=6))
def test_each_sample_is_used_once_however_often_the_workers_change(deal: Deal, sizes: list[int]) -> None:
    """But for those that fill up the last step, as DistributedSampler does, or that drop_last leaves out."""
    steps = an_epoch(deal, sizes)
    used = [place for _, places in steps for place in places]
    first = sorted(place for place in used if place < deal.samples)
    assert first == list(range(len(first)))
    assert len(used) - len(first) < max(sizes)
    if not deal.drop_last:
        assert len(first) == deal.samples


@given(deals, workers, st.integers(0, 399))
def test_all_workers_have_equally_many_steps_and_nobody_has_none_in_a_step(
    deal: Deal, size: int, start: int
) -> None:
    if deal.steps(start, size):
        shares = [len(deal.share(start, rank, size).places) for rank in range(size)]
        assert min(shares) >= 1
        assert max(shares) - min(shares) <= 1


@given(deals, st.lists(workers, min_size=1, max_size=6))
def test_even_steps_give_all_workers_as_many_samples(deal: Deal, sizes: list[int]) -> None:
    for size, places in an_epoch(replace(deal, even=True), sizes):
        assert len(places) % size == 0
        assert len(places) <= size * max(deal.per_worker, 1)


@given(deals, workers, st.integers(0, 399))
def test_weights_make_the_mean_over_workers_that_over_samples(deal: Deal, size: int, start: int) -> None:
    if deal.steps(start, size):
        shares = [deal.share(start, rank, size) for rank in range(size)]
        used = sum(len(share.places) for share in shares)
        for share in shares:
            of_a_sample = share.weight / size / len(share.places)
            assert of_a_sample == pytest.approx(1 / used)


@given(deals, workers)
def test_steps_are_as_many_as_are_taken(deal: Deal, size: int) -> None:
    assert deal.steps(0, size) == len(an_epoch(deal, [size]))


def test_the_global_batch_stays_that_of_the_base_by_default() -> None:
    deal = Deal(samples=1000, per_worker=32, base=2)
    assert [deal.global_batch(size) for size in (2, 3, 8)] == [64, 64, 64]
    assert [len(deal.share(0, rank, 3).places) for rank in range(3)] == [22, 21, 21]


@pytest.mark.parametrize("left", [65, 70, 100, 127])
def test_an_epoch_that_has_got_more_samples_does_not_end_with_a_few(left: int) -> None:
    """BatchNorm fails on a single sample. Scripts have seen to it that their own last step has more."""
    deal = Deal(samples=1000, per_worker=32, base=2, is_longer=True)
    start = 1000 - left
    steps = [deal.end(start, 3) - start, 1000 - deal.end(start, 3)]
    assert max(steps) - min(steps) <= 1
    assert deal.steps(start, 3) == 2


def test_below_the_base_a_worker_keeps_its_batch() -> None:
    """More samples might not fit into its memory."""
    assert Deal(samples=1000, per_worker=32, base=4).global_batch(3) == 96


def test_the_global_batch_grows_where_that_is_asked_for() -> None:
    deal = Deal(samples=1000, per_worker=32, base=2, rule=BatchRule.GROW)
    assert [deal.global_batch(size) for size in (1, 2, 3)] == [32, 64, 96]


# --- batches in blocks, and loops that count their steps in advance ----------------------------------------


def steps_used(
    deal: Deal, sizes: Sequence[int], planned: int | None = None, lost: int = -1
) -> list[list[int]]:
    """The places of each step that counts, with a size for each step. The step `lost` has no effect."""
    start, used = 0, []
    for steps, size in enumerate(cycle(sizes)):
        most = None if planned is None else planned - steps
        if deal.steps(start, size, most) == 0:
            return used
        shares = [deal.share(start, rank, size, most) for rank in range(size)]
        assert sum(share.weight for share in shares) == pytest.approx(size)
        if steps != lost:
            used.append(list(chain.from_iterable(share.places for share in shares)))
            start = deal.end(start, size, most)
    raise AssertionError("there is always a size")


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("rule", list(BatchRule))
@pytest.mark.parametrize("sizes", [(2,), (2, 3), (3, 1, 4), (5,)])
def test_every_sample_is_used_once(in_blocks: bool, rule: BatchRule, sizes: tuple[int, ...]) -> None:
    """Beyond the end of the order, the last step is filled up until all workers have equally many."""
    deal = Deal(1000, 16, base=2, rule=rule, in_blocks=in_blocks)
    places = list(chain.from_iterable(steps_used(deal, sizes)))
    assert sorted(places)[:1000] == list(range(1000))
    assert len(places) - 1000 < max(sizes)


def test_accelerates_workers_have_neighbours() -> None:
    """What is gathered from all workers, in order of rank, is in the epoch's order."""
    deal = Deal(100, 4, base=2, in_blocks=True)
    assert [list(deal.share(8, rank, 2).places) for rank in range(2)] == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert steps_used(deal, (3,))[1] == list(range(8, 16))


@pytest.mark.parametrize("lost", [0, 5, 60])
def test_a_loop_that_counts_its_steps_uses_all_samples_after_a_lost_one(lost: int) -> None:
    """The steps that are left are a little larger, and exactly as many as the loop takes."""
    deal = Deal(1000, 8, base=2)
    planned = deal.steps(0, 2)
    used = steps_used(deal, (2,), planned, lost)
    assert len(used) == planned - 1
    assert sorted(chain.from_iterable(used)) == list(range(1000))


def test_a_loop_that_counts_its_steps_takes_no_other_batches_if_none_is_lost() -> None:
    """Its batches are those of any other loop."""
    deal = Deal(1000, 8, base=2)
    assert steps_used(deal, (2, 3), deal.steps(0, 2)) == steps_used(deal, (2, 3))


def test_the_last_samples_stay_out_of_an_epoch_that_drops_its_last_batch() -> None:
    """Also after a step that was lost."""
    deal = Deal(1000, 8, base=2, drop_last=True)
    used = list(chain.from_iterable(steps_used(deal, (2,), deal.steps(0, 2), lost=3)))
    assert sorted(used) == list(range(992))


@given(deals, st.lists(workers, min_size=1, max_size=6), st.integers(-1, 20))
def test_even_steps_that_a_loop_has_counted_are_as_many_and_use_all_samples(
    deal: Deal, sizes: list[int], lost: int
) -> None:
    """Where each worker has two samples of a step or more."""
    deal = replace(deal, per_worker=deal.per_worker + 1, rule=BatchRule.KEEP, even=True)
    base = deal.per_worker * deal.base
    deal = replace(deal, samples=deal.samples + base)
    sizes = [min(max(size, deal.base), base // 2) for size in sizes]
    planned = deal.steps(0, deal.base)
    lost = min(lost, planned - 2)  # the very last step cannot be made up for
    used = steps_used(deal, sizes, planned, lost)
    first = sorted(place for place in chain.from_iterable(used) if place < deal.samples)
    assert first == list(range(len(first)))
    assert len(first) >= planned * base or len(first) == deal.samples
    assert len(used) == planned - (lost >= 0)
    assert all(len(places) % size == 0 for places, size in zip(used, cycle(sizes)) if lost < 0)
