"""Each part of an average is that of its own contributors: a rank may die in the middle of a push."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from horovod_elastic.aggregation.client import Key
from horovod_elastic.aggregation.memory import InputMemory, KeyShape, ResultMemory, mask_of, ranks_in
from horovod_elastic.aggregation.plan import LEAST_PART_BYTES, Plan, PlannedNode
from horovod_elastic.core.c10d.attendance import Attendance
from horovod_elastic.core.c10d.sums import Sums

RANKS = 3
ALL, WITHOUT_2 = frozenset({0, 1, 2}), frozenset({0, 1})


class PretendedClient:
    """Every rank pushes the same as this one. So an average is the input, whoever contributes."""

    def __init__(self, contributors: Sequence[frozenset[int]]) -> None:
        self.plan = Plan("17", 1, tuple(PlannedNode(f"n{n}", (n,)) for n in range(RANKS)), LEAST_PART_BYTES)
        self._contributors = contributors

    def key(self, shape: KeyShape) -> Key:
        return Key(0, shape, InputMemory(shape), ResultMemory(shape, self.plan.part_bytes, self.plan.size))

    def begin(self, key: Key, then: Callable[[str], None]) -> None:
        assert key.result is not None
        dtype = getattr(torch, key.shape.dtype)
        pushed = torch.frombuffer(key.input.view, dtype=dtype, count=key.shape.elements)
        result = torch.frombuffer(key.result.view, dtype=dtype, count=key.shape.elements)
        for part, ranks in enumerate(self._contributors):
            where = key.shape.part(part, self.plan.part_bytes)
            result[where] = pushed[where] * len(ranks)
            key.result.is_whole(part, 1, mask_of(sorted(ranks), RANKS))
        then("")

    def contributors(self, key: Key) -> list[frozenset[int]]:
        assert key.result is not None
        return [ranks_in(key.result.contributors(part)) for part in range(len(self._contributors))]

    def missing(self, key: Key) -> bool:
        return any(ranks != ALL for ranks in self.contributors(key))


def averaged(
    contributors: Sequence[frozenset[int]], dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[torch.Tensor], Attendance]:
    """What was pushed, its average, and who took part. The first of two tensors ends within a part."""
    client, attendance = PretendedClient(contributors), Attendance(RANKS)
    sums = Sums(client, attendance)  # type: ignore[arg-type]
    each = LEAST_PART_BYTES // dtype.itemsize
    whole = torch.arange(len(contributors) * each).remainder(100).add(1).to(dtype)
    pushed = [whole[: each + 7], whole[each + 7 :]]
    summing = sums.begin(tuple((t.numel(),) for t in pushed), dtype, pushed)
    outputs = [torch.empty_like(tensor) for tensor in pushed]
    summing.take(outputs, 1 / RANKS, average=True, of_gradients=True)
    return pushed, outputs, attendance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize(
    "contributors",
    [(ALL, ALL, ALL), (WITHOUT_2, WITHOUT_2, WITHOUT_2), (ALL, WITHOUT_2, WITHOUT_2), (WITHOUT_2, ALL, ALL)],
    ids=["all", "without one", "one in the first part", "one in the last parts"],
)
def test_each_part_of_an_average_is_divided_by_the_number_of_its_own_contributors(
    contributors: Sequence[frozenset[int]], dtype: torch.dtype
) -> None:
    pushed, outputs, _ = averaged(contributors, dtype)
    for given, output in zip(pushed, outputs, strict=True):
        assert output.dtype == dtype
        assert torch.allclose(output.double(), given.double(), rtol=1e-2 if dtype.itemsize == 2 else 1e-6)


@pytest.mark.parametrize(
    ("contributors", "absent"),
    [((ALL, ALL), set()), ((ALL, WITHOUT_2), set()), ((WITHOUT_2, WITHOUT_2), {2})],
)
def test_the_samples_of_a_rank_that_is_in_a_part_of_an_average_are_not_dealt_again(
    contributors: Sequence[frozenset[int]], absent: set[int]
) -> None:
    assert averaged(contributors)[2].absent() == absent


def test_a_result_that_other_workers_read_too_keeps_its_sum() -> None:
    client = PretendedClient((ALL, WITHOUT_2))
    sums = Sums(client, Attendance(RANKS))  # type: ignore[arg-type]
    ones = torch.ones(2 * LEAST_PART_BYTES // 4)
    summing = sums.begin((tuple(ones.shape),), ones.dtype, [ones])
    for _ in range(2):
        output = torch.empty_like(ones)
        summing.take([output], 1 / RANKS, average=True)
        assert torch.allclose(output, ones)
