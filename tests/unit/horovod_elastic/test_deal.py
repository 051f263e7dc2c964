"""How an epoch is dealt out to the workers of a torch.distributed script: each sample once, in any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, cycle

import pytest

from horovod_elastic.worker.ddp.deal import BatchRule, Deal


def epoch(deal: Deal, sizes: Sequence[int], planned: int | None = None, lost: int = -1) -> list[list[int]]:
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
    places = list(chain.from_iterable(epoch(deal, sizes)))
    assert sorted(places)[:1000] == list(range(1000))
    assert len(places) - 1000 < max(sizes)


def test_accelerates_workers_have_neighbours() -> None:
    """What is gathered from all workers, in order of rank, is in the epoch's order."""
    deal = Deal(100, 4, base=2, in_blocks=True)
    assert [list(deal.share(8, rank, 2).places) for rank in range(2)] == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert epoch(deal, (3,))[1] == list(range(8, 16))


@pytest.mark.parametrize("lost", [0, 5, 60])
def test_a_loop_that_counts_its_steps_uses_all_samples_after_a_lost_one(lost: int) -> None:
    """The steps that are left are a little larger, and exactly as many as the loop takes."""
    deal = Deal(1000, 8, base=2)
    planned = deal.steps(0, 2)
    used = epoch(deal, (2,), planned, lost)
    assert len(used) == planned - 1
    assert sorted(chain.from_iterable(used)) == list(range(1000))


def test_a_loop_that_counts_its_steps_takes_no_other_batches_if_none_is_lost() -> None:
    """Its batches are those of any other loop."""
    deal = Deal(1000, 8, base=2)
    assert epoch(deal, (2, 3), deal.steps(0, 2)) == epoch(deal, (2, 3))


def test_the_last_samples_stay_out_of_an_epoch_that_drops_its_last_batch() -> None:
    """Also after a step that was lost."""
    deal = Deal(1000, 8, base=2, drop_last=True)
    used = list(chain.from_iterable(epoch(deal, (2,), deal.steps(0, 2), lost=3)))
    assert sorted(used) == list(range(992))
