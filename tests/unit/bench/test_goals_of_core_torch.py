"""The goals of the core on torch.distributed, from figures made up here."""

from __future__ import annotations

import pytest

from flexo_bench.runtime.pauses import Pause
from flexo_bench.runtime.results import Broadcast, Connected, Connecting, Figures, Resize, Steady

pytestmark = pytest.mark.thorough

BATCH_S = 0.1


def resize(rival: str, before: int, after: int, seconds: float) -> Resize:
    return Resize(rival, "toy", Pause(before, after, seconds, 0.0, 0, 1.0, 2.0, BATCH_S, BATCH_S))


def connected(ranks: int, seconds: float) -> Connected:
    return Connected(ranks, (0.01,), (seconds,), (0.001,), (0.002,), (0.05,), (0.05,))


def figures(out_s: float, in_s: float, ours_at_4: float) -> Figures:
    resizes = [resize("stock", 2, 3, 6.0), resize("stock", 3, 2, 0.2)]
    resizes += [resize("core_torch", 2, 3, out_s), resize("core_torch", 3, 2, in_s)]
    rates = [Steady("stock", 0, 4, 100.0), Steady("core_torch", 0, 4, ours_at_4)]
    sizes = (connected(16, 0.04), connected(32, 0.08))
    broadcasts = (Broadcast("toy", 3, 4_400_000, (0.004, 0.005, 0.2)),)
    return Figures({}, "", resizes, rates, connecting=Connecting(0.05, sizes, broadcasts))


def verdicts(found: Figures) -> dict[str, str]:
    return {goal.name: goal.verdict for goal in found.goals()}


def test_a_pause_may_take_a_mini_batch_and_two_broadcasts_and_a_hundredth_of_stocks() -> None:
    told = verdicts(figures(0.059, 0.09, 101.0))
    assert told["core_torch.toy.out_pause_vs_mini_batch_and_two_broadcasts"] == "reached"
    assert told["core_torch.toy.out_pause_ratio_vs_stock"] == "reached"
    assert told["core_torch.toy.in_pause_vs_mini_batch"] == "reached"
    told = verdicts(figures(0.111, 0.101, 101.0))
    assert told["core_torch.toy.out_pause_vs_mini_batch_and_two_broadcasts"] == "missed"
    assert told["core_torch.toy.out_pause_ratio_vs_stock"] == "missed"
    assert told["core_torch.toy.in_pause_vs_mini_batch"] == "missed"
    assert told["core_torch.large.out_pause_ratio_vs_stock"] == "not measured"


def test_it_must_be_as_fast_as_stock_at_every_size_with_every_model() -> None:
    told = verdicts(figures(0.05, 0.05, 99.9))
    assert told["core_torch.toy.steady_throughput_ratio_vs_stock_at_4"] == "missed"
    assert told["core_torch.toy.steady_throughput_ratio_vs_stock_at_2"] == "not measured"
    assert (
        verdicts(figures(0.05, 0.05, 100.0))["core_torch.toy.steady_throughput_ratio_vs_stock_at_4"]
        == "reached"
    )


def test_what_nobody_measured_goes_on_as_between_the_last_two() -> None:
    found = figures(0.05, 0.05, 100.0).figures_of_core_torch()
    assert found["core_torch.connect_at_32.all_train_s"] == pytest.approx(0.08)
    assert found["core_torch.connect_at_64.extrapolated_s"] == pytest.approx(0.16)
    assert found["core_torch.toy.broadcast_s"] == pytest.approx(0.005)
    assert Figures({}, "").figures_of_core_torch()["core_torch.large.broadcast_s"] is None
