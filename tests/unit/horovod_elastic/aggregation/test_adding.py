"""Sums are made in one order, and half precision is rounded once."""

from __future__ import annotations

import numpy as np
import pytest

from horovod_elastic.aggregation.adding import add_up
from horovod_elastic.aggregation.memory import Array, wide

torch = pytest.importorskip("torch")


def drawn(count: int, dtype: str, elements: int = 1000) -> list[Array]:
    generator = np.random.default_rng(7)
    numbers = generator.standard_normal((count, elements)) * 10.0 ** generator.integers(
        -4, 4, (count, elements)
    )
    return [each.astype(dtype) for each in numbers]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_summands_are_added_from_left_to_right(dtype: str, count: int) -> None:
    summands = drawn(count, dtype)
    total = summands[0].copy()
    for each in summands[1:]:
        total = total + each
    into = np.empty_like(total)
    add_up(summands, into, dtype)
    assert into.tobytes() == total.tobytes()


def test_integers_are_summed_exactly_also_beyond_what_a_float_holds() -> None:
    summands = [np.array([2**62, -(2**62), 1, 2**53 + 1], dtype=np.int64) for _ in range(1)]
    into = np.empty(4, dtype=np.int64)
    add_up([summands[0], np.array([1, -1, 1, 1], dtype=np.int64)], into, "int64")
    assert into.tolist() == [2**62 + 1, -(2**62) - 1, 2, 2**53 + 2]


def halves(dtype: str, values: list[float]) -> Array:
    tensor = torch.tensor(values, dtype=getattr(torch, dtype))
    return tensor.view(torch.int16).numpy().view("float16" if dtype == "float16" else "uint16")


def values(array: Array, dtype: str) -> list[float]:
    return torch.from_numpy(array.view(np.int16)).view(getattr(torch, dtype)).float().tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype: str) -> None:
    step = 2.0**-12 if dtype == "float16" else 2.0**-9
    summands = [halves(dtype, [1.0])] + [halves(dtype, [step]) for _ in range(8)]
    into = halves(dtype, [0.0])
    add_up(summands, into, dtype)
    assert values(into, dtype) == [1.0 + 8 * step], "added one by one, each would have been rounded away"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_partial_sums_of_half_precision_lose_nothing_between_nodes(dtype: str) -> None:
    assert wide(dtype) == "float32"
    step = 2.0**-12 if dtype == "float16" else 2.0**-9
    node_sums = []
    for base in (1.0, step):
        partial = np.empty(1, dtype=np.float32)
        add_up([halves(dtype, [base]), halves(dtype, [step])], partial, dtype)
        node_sums.append(partial)
    into = halves(dtype, [0.0])
    before = [each.copy() for each in node_sums]
    add_up(node_sums, into, dtype)
    total = torch.tensor([1.0 + 3 * step]).to(getattr(torch, dtype)).float().tolist()
    assert values(into, dtype) == total
    assert [each.tobytes() for each in node_sums] == [each.tobytes() for each in before], "summands stay"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_summands_are_never_changed(dtype: str, count: int) -> None:
    if dtype in ("float16", "bfloat16"):
        summands: list[Array] = [halves(dtype, [1.5, -2.0, float(each)]) for each in range(count)]
    else:
        summands = [(100 * each).astype(dtype) for each in drawn(count, "float64", 3)]
    before = [each.tobytes() for each in summands]
    for kind in {summands[0].dtype, np.dtype(summands[0].dtype if dtype == "int64" else wide(dtype))}:
        add_up(summands, np.empty(3, dtype=kind), dtype)
        assert [each.tobytes() for each in summands] == before


def test_a_sum_may_replace_its_first_summand() -> None:
    first, second = drawn(2, "float32")
    expected = (first + second).tobytes()
    add_up([first, second], first, "float32")
    assert first.tobytes() == expected
