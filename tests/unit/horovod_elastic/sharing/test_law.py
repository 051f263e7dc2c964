"""The law of a shared GPU, on a virtual GPU in virtual time: what the guarantee job keeps, whatever the
other does.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_gpu import GIB, Guarantee, Opportunistic, VirtualGpu

from horovod_elastic.sharing import law
from horovod_elastic.sharing.law import Phase, Rules
from horovod_elastic.sharing.pages import GateState

BUSY = st.floats(0.005, 1.0)
GAPS = st.floats(0.001, 2.0)
LEAKS = st.floats(0.00001, 0.02)


def test_a_newcomer_finds_the_gate_closed_and_no_memory_until_thirty_steady_steps() -> None:
    gpu = VirtualGpu()
    gpu.look()
    while len(gpu.guarantee.steps) < 29:
        gpu.step()
        assert (gpu.order.gate, gpu.order.limit) == (GateState.CLOSED, 0)
    gpu.run(1.0)
    assert gpu.order.gate is GateState.GAPS
    assert gpu.order.limit > 0


@pytest.mark.parametrize("who", ["guarantee", "opportunistic"])
def test_a_newcomer_on_either_side_begins_anew(who: str) -> None:
    gpu = VirtualGpu()
    gpu.run(20)
    assert gpu.order.gate is GateState.GAPS
    getattr(gpu, who).identity = 9
    assert (gpu.look().gate, gpu.order.limit) == (GateState.CLOSED, 0)
    gpu.run(20)
    assert gpu.order.gate is GateState.GAPS


def test_steps_that_still_get_faster_are_not_steady() -> None:
    gpu = VirtualGpu(Guarantee(jitter=lambda step: 1 + 20 * 0.97**step))
    while gpu.state.phase is not Phase.SHARING:
        gpu.step()
    assert len(gpu.guarantee.steps) > 90


@given(BUSY, GAPS, LEAKS)
def test_leaks_cost_the_guarantee_job_at_most_one_percent_of_a_gap(
    busy: float, gap: float, leak: float
) -> None:
    gpu = VirtualGpu(Guarantee(busy, gap), Opportunistic(leak))
    gpu.run(40 * (busy + gap) + 5)
    del gpu.guarantee.steps[:]
    gpu.run(300 * (busy + gap))
    measured = 16 * leak / (300 * (busy + gap))  # the first leaks after each baseline are measured
    assert gpu.slowdown(300) <= 0.0101 + measured


@given(LEAKS)
def test_gaps_that_are_shorter_than_a_hundred_leaks_are_left_empty(leak: float) -> None:
    gpu = VirtualGpu(Guarantee(0.1, 60 * leak), Opportunistic(leak))
    while gpu.state.phase is not Phase.SHARING or gpu.state.retrial_at_s < math.inf:
        gpu.step()
    while len(gpu.state.leaks) < gpu.rules.trials:
        gpu.step()
    gpu.run(1)
    before = gpu.opportunistic.worked_s
    gpu.run(10)
    assert gpu.opportunistic.worked_s == before


def test_a_newcomer_that_leaks_with_its_first_operations_alone_fills_gaps_seconds_later() -> None:
    gpu = VirtualGpu(Guarantee(0.02, 0.15), opportunistic=Opportunistic(leak_s=0.1))
    while len(gpu.state.leaks) < gpu.rules.trials:
        gpu.step()
    assert gpu.opportunistic is not None
    gpu.opportunistic.leak_s, before = 0.0005, gpu.opportunistic.worked_s
    gpu.run(2 * gpu.rules.retrial_s)
    assert gpu.opportunistic.worked_s > before + 0.2 * gpu.rules.retrial_s


def test_long_gaps_among_short_ones_are_filled_once_they_have_lasted() -> None:
    rules = Rules()
    gaps, leaks = [0.001] * 50 + [3.0], [0.002] * 8
    assert law.patience_s(gaps, leaks, rules) == pytest.approx(0.2)
    assert law.patience_s([3.0] * 20, leaks, rules) == 0.0


@given(st.integers(1, 200), st.integers(0, 200), st.floats(0, 0.2), st.lists(st.integers(0, 200), max_size=5))
def test_the_limit_leaves_the_peak_and_a_tenth_of_the_memory(
    total: int, peak: int, drag: float, surges: list[int]
) -> None:
    gpu = VirtualGpu(Guarantee(peak=peak * GIB), Opportunistic(drag=drag), total * GIB)
    for surge in (0, *surges):
        gpu.guarantee.peak = max(gpu.guarantee.peak, surge * GIB)
        gpu.look()
        gpu.run(15)
        for _, _, order in gpu.orders[-100:]:
            assert order.limit <= max(0, 0.9 * gpu.total - peak * GIB)
        assert gpu.order.limit + gpu.guarantee.peak <= max(0.9 * gpu.total, gpu.guarantee.peak)


def test_a_surge_lowers_the_limit_at_the_next_look() -> None:
    gpu = VirtualGpu()
    gpu.run(60)
    before = gpu.order.limit
    gpu.guarantee.peak += 10 * GIB
    assert gpu.look().limit <= before - 10 * GIB


def test_a_guarantee_job_that_comes_back_finds_room_for_what_it_held() -> None:
    gpu = VirtualGpu(Guarantee(peak=50 * GIB))
    gpu.run(20)
    gpu.guarantee = None
    gpu.run(gpu.rules.return_s - 5)
    assert (gpu.order.gate, gpu.order.limit) == (GateState.OPEN, 22 * GIB)
    gpu.opportunistic.identity = 9
    assert gpu.look().limit == 22 * GIB
    gpu.run(10)
    assert gpu.order.limit == 72 * GIB


def test_what_a_guarantee_jobs_former_process_held_counts_after_one_that_ended_early() -> None:
    gpu = VirtualGpu(Guarantee(peak=50 * GIB))
    gpu.run(20)
    gpu.guarantee.identity, gpu.guarantee.peak = 9, 1 * GIB
    gpu.run(1)
    gpu.guarantee = None
    assert gpu.look().limit == 22 * GIB


def test_a_job_that_keeps_memory_that_the_guarantee_job_needs_is_evicted() -> None:
    gpu = VirtualGpu(Guarantee(peak=20 * GIB), Opportunistic(memory=60 * GIB))
    gpu.run(gpu.rules.over_s - 1)
    assert gpu.order.gate is not GateState.EVICTED
    gpu.run(2)
    assert gpu.order.gate is GateState.EVICTED


@pytest.mark.parametrize(
    "job",
    [
        Opportunistic(memory=52 * GIB),
        Opportunistic(memory=60 * GIB, moved=1),
        Opportunistic(memory=law.CONTEXT),
    ],
    ids=["within its limit", "has moved out", "holds a context alone"],
)
def test_a_job_that_has_given_back_what_it_can_is_not_evicted(job: Opportunistic) -> None:
    gpu = VirtualGpu(Guarantee(peak=80 * GIB if job.memory == law.CONTEXT else 20 * GIB), job)
    gpu.run(3 * gpu.rules.over_s)
    assert all(order.gate is not GateState.EVICTED for _, _, order in gpu.orders)


def test_the_limit_rises_in_steps() -> None:
    gpu = VirtualGpu()
    gpu.run(60)
    limits = list(dict.fromkeys(order.limit for _, phase, order in gpu.orders if phase is Phase.SHARING))
    assert limits == sorted(limits)
    assert len(limits) == gpu.rules.rises


def test_on_instability_it_halves_then_closes_and_rests_longer_each_time() -> None:
    gpu = VirtualGpu(opportunistic=Opportunistic(drag=0.5))
    gpu.run(300)
    phases = [phase for _, phase, _ in gpu.orders]
    halved = next(order for _, phase, order in gpu.orders if order.every == 2)
    assert halved.gate is not GateState.OPEN
    rests = [at for (at, phase, _), before in zip(gpu.orders[1:], phases, strict=False) if
             phase is Phase.RESTING and before is not Phase.RESTING]  # fmt: skip
    assert len(rests) >= 3
    pauses = [second - first for first, second in itertools.pairwise(rests)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 1.5 * pauses[0]


def test_a_job_that_slows_the_other_by_more_than_the_tolerance_gets_little_of_the_time() -> None:
    gpu = VirtualGpu(opportunistic=Opportunistic(drag=0.5))
    gpu.run(1200)
    assert gpu.slowdown(len(gpu.guarantee.steps)) < 0.03


@given(BUSY, GAPS)
def test_the_baseline_is_measured_anew_in_one_percent_of_the_time(busy: float, gap: float) -> None:
    gpu = VirtualGpu(Guarantee(busy, gap))
    gpu.run(60 * (busy + gap) + 1)
    began = gpu.now_s
    del gpu.orders[:]
    gpu.run(1500)
    looks = list(itertools.pairwise(gpu.orders))
    measured = sum(after[0] - before[0] for before, after in looks if before[1] is Phase.BASELINE)
    assert any(phase is Phase.BASELINE for _, phase, _ in gpu.orders)
    assert measured / (gpu.now_s - began) <= 0.015 + (busy + gap) / 1500


def test_a_baseline_ends_where_the_guarantee_job_takes_no_step() -> None:
    gpu = VirtualGpu()
    gpu.run(30)
    while gpu.state.phase is not Phase.BASELINE:
        gpu.step()
    for _ in range(100):
        gpu.now_s += 0.1
        gpu.look()
    assert gpu.state.phase is Phase.SHARING


def test_a_page_older_than_a_second_closes_the_gate_and_a_fresh_one_opens_it() -> None:
    gpu = VirtualGpu()
    gpu.run(20)
    gpu.stale_s = 1.01
    assert gpu.look().gate is GateState.CLOSED
    gpu.stale_s = 0.1
    assert gpu.look().gate is GateState.GAPS


def test_without_a_guarantee_job_the_gate_is_open_but_for_the_headroom() -> None:
    gpu = VirtualGpu(None)
    assert (gpu.look().gate, gpu.order.limit) == (GateState.OPEN, 72 * GIB)


def test_a_coordinator_that_has_just_started_opens_no_gate() -> None:
    seen = law.Seen(0.0, GIB, None, law.OpportunisticSeen(1, ()), complete=False)
    assert law.decide(law.State(), seen)[1].gate is GateState.CLOSED


def test_noise_alone_closes_no_gate() -> None:
    drawn = random.Random(5)
    gpu = VirtualGpu(Guarantee(jitter=lambda _: drawn.uniform(0.9, 1.1)))
    gpu.run(1800)
    assert not [at for at, phase, _ in gpu.orders if phase is Phase.RESTING]


def test_nearly_all_of_long_gaps_is_worked_in() -> None:
    gpu = VirtualGpu(Guarantee(0.1, 2.0))
    gpu.run(200)
    before, began = gpu.opportunistic.worked_s, gpu.now_s
    gpu.run(600)
    assert (gpu.opportunistic.worked_s - before) / (gpu.now_s - began) > 0.95 * 2.0 / 2.1
