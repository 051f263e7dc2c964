"""Nobody starves under `lyra` by history, although large bases leave some flexible workers to small ones."""

from __future__ import annotations

import pytest
from little_simulations import by_number, trace_job

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.lyra import Lyra
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.records import JobRecord
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import TraceJob, Workload

STREAM_S = 20_000
"""The time during which jobs of one GPU come. They take more than all that the others leave."""
SHORT_S = 100.0
PATIENCE_S = 3600.0
COMES_AT = 2000.0
ELASTIC, LARGE = 1, 2


def stream(each_s: int) -> list[TraceJob]:
    """Jobs of one GPU, one every `each_s`."""
    return [trace_job(10 + at, SHORT_S, at=float(at)) for at in range(0, STREAM_S, each_s)]


def large_under(policy: Lyra, shorts: list[TraceJob]) -> JobRecord:
    """The record of a job of four GPUs beside an elastic job on eight."""
    elastic = trace_job(ELASTIC, 10 * STREAM_S / 8, "2-8", at=0.0, user="eve")
    large = trace_job(LARGE, 3000.0, 4, at=COMES_AT)
    jobs = tuple(sorted((elastic, large, *shorts), key=lambda job: job.submitted_at))
    scenario = Scenario((NodeGroup(2, 4),), estimates=Estimates(Mode.HISTORY))
    return by_number(simulate(Workload("stream", jobs), policy, scenario))[LARGE]


def impatient(**sets: float) -> Lyra:
    return Lyra(patience_s=PATIENCE_S, **sets)


@pytest.mark.parametrize("each_s", [16, 40, 200])
def test_a_large_job_starts_within_bounded_time_under_an_endless_stream_of_short_ones(each_s: int):
    """After its patience it waits for the end of short jobs at most, whether they leave GPUs to the elastic
    job (every 40 and 200 s) or not."""
    queued_s = large_under(impatient(), stream(each_s)).queue_s
    assert queued_s is not None
    assert queued_s <= PATIENCE_S + 2 * SHORT_S


def test_without_protection_it_waits_for_the_end_of_the_stream():
    queued_s = large_under(impatient(patience_share=0.0), stream(16)).queue_s
    assert queued_s is not None
    assert queued_s >= STREAM_S - COMES_AT - SHORT_S


def test_where_enough_gpus_are_flexible_a_large_job_takes_them_at_once():
    """One short job in 200 s leaves the elastic job five flexible workers; a tenth of eight GPUs are kept."""
    queued_s = large_under(impatient(small_share=0.1), stream(200)).queue_s
    assert queued_s is not None
    assert queued_s <= SHORT_S


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_where_nothing_is_elastic_nothing_is_kept_for_small_bases(share: float):
    jobs = tuple(
        trace_job(number, 50.0 * (number % 7 + 1), number % 4 + 1, at=5.0 * number) for number in range(60)
    )
    scenario = Scenario((NodeGroup(2, 4),), estimates=Estimates(Mode.HISTORY))
    starts = [
        {
            each.job.job_id: each.first_start_at
            for each in simulate(Workload("w", jobs), policy, scenario).records
        }
        for policy in (Lyra(small_share=share), Lyra(small_share=0.5))
    ]
    assert starts[0] == starts[1]
