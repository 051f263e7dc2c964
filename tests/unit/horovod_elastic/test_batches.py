"""Each worker's share of the aggregate batch: together they take exactly that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.batches import BadBatch, linear, share, smallest_allowed


@given(st.integers(1, 100_000), st.integers(1, 512), st.integers(0, 4096))
def test_shares_add_up_to_the_batch_and_are_as_even_as_can_be(total: int, workers: int, largest: int) -> None:
    shares = [share(total, workers, rank, largest) for rank in range(workers)]
    samples = [each.samples for each in shares]
    assert sum(samples) == max(total, workers)
    assert max(samples) - min(samples) <= 1
    assert samples == sorted(samples, reverse=True)
    for each in shares:
        assert each.aggregate == sum(samples)
        assert max(each.parts) - min(each.parts) <= 1
        assert min(each.parts) >= 1
        if largest:
            assert max(each.parts) <= largest
            assert (each.passes - 1) * largest < each.samples
        else:
            assert each.passes == 1


@given(st.integers(1, 100_000), st.integers(1, 512), st.integers(0, 4096))
def test_even_shares_are_all_the_same_and_the_batch_is_rounded_down(
    total: int, workers: int, largest: int
) -> None:
    first, last = (share(total, workers, rank, largest, even=True) for rank in (0, workers - 1))
    assert first == last
    assert first.aggregate == first.samples * workers == max(total // workers, 1) * workers


def test_few_workers_take_their_share_in_parts_that_fit() -> None:
    assert share(256, 2, 0, largest=64).parts == (64, 64)
    assert share(256, 4, 3, largest=64).parts == (64,)
    assert share(100, 3, 0, largest=20).parts == (17, 17)
    assert share(100, 3, 2, largest=20).parts == (17, 16)


def test_with_more_workers_than_samples_everybody_takes_one() -> None:
    assert share(3, 5, 4).parts == (1,)
    assert share(3, 5, 4).aggregate == 5


@pytest.mark.parametrize(
    ("total", "workers", "rank", "largest"),
    [(0, 1, 0, 0), (8, 0, 0, 0), (8, 2, 2, 0), (8, 2, -1, 0), (8, 1, 0, -1)],
)
def test_a_share_that_cannot_be_is_refused(total: int, workers: int, rank: int, largest: int) -> None:
    with pytest.raises(BadBatch):
        share(total, workers, rank, largest)


def test_the_linear_rule_goes_there_and_back() -> None:
    assert linear(0.1, 32, 256) == pytest.approx(0.8)
    assert linear(linear(0.1, 32, 96), 96, 32) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("said", "least"),
    [("32-256", 32), ("", None), ("0-4", None), ("32", None), ("a-b", None), ("32-256 ", None)],
)
def test_the_smallest_batch_is_the_range_s_lower_end(said: str, least: int | None) -> None:
    assert smallest_allowed({"FLEXO_ELASTIC_BATCH": said}) == least
