"""The set-up of AntMan's section 5.2: its jobs, and the schedulers that AntMan is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.ranges import Range
from flexo.model.training import Quota
from flexo.policies.base import Policy
from flexo_bench.papers import antman
from flexo_bench.papers.antman_rivals import CapacityScheduler, Packing
from flexo_protos.resources import Resources
from flexo_simulation.comparison import Trial, run_trials
from flexo_simulation.engine import simulate
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.pairs import UTILIZATIONS, Control, utilization_of
from flexo_simulation.records import JobRecord
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.seats import GpuSharing
from flexo_simulation.workload import TraceJob, Workload

SMALL = antman.Assumed(jobs=60)


def job(number: int, tenant: str, gpus: int, seconds: float = 100.0, at: float = 0.0, model="") -> TraceJob:
    return TraceJob(
        number,
        at,
        Range(gpus, gpus),
        gpus,
        Resources(gpus=1, cpus=1),
        LinearTraining(seconds * gpus),
        tenant=tenant,
        model=model,
    )


def records(policy: Policy, jobs: Sequence[TraceJob], gpus: int = 4) -> dict[int, JobRecord]:
    place = Scenario(
        (NodeGroup(1, gpus),),
        quotas=(Quota("a", gpus),),
        checkpoints=False,
        sharing=GpuSharing(Control.PACKED),
    )
    return {each.job.job_id: each for each in simulate(Workload("test", tuple(jobs)), policy, place).records}


def test_a_fifth_of_the_jobs_is_of_each_domain_and_half_of_each_tenant_and_all_models_are_known():
    jobs = antman.workload(1, antman.Assumed(jobs=5000)).jobs
    domains = {model: number for number, names in enumerate(antman.DOMAINS) for model in names}
    for count in Counter(domains[job.model] for job in jobs).values():
        assert count / len(jobs) == pytest.approx(0.2, abs=0.02)
    assert Counter(job.tenant for job in jobs)["a"] / len(jobs) == pytest.approx(0.5, abs=0.02)
    assert {utilization_of(job.model, -1.0) for job in jobs} == set(UTILIZATIONS.values())


def test_equal_seeds_make_equal_jobs_whatever_their_utilization_is_taken_to_be():
    one, again = antman.workload(3, SMALL), antman.workload(3, SMALL)
    assert one == again
    assert one != antman.workload(4, SMALL)
    alike = antman.workload(3, antman.Assumed(jobs=60, utilization=0.4))
    assert [(job.submitted_at, job.tenant, job.training) for job in alike.jobs] == [
        (job.submitted_at, job.tenant, job.training) for job in one.jobs
    ]
    assert {job.model for job in alike.jobs} == {""}


def test_under_the_capacity_scheduler_tenants_with_a_quota_come_first_and_others_use_what_is_idle():
    jobs = [job(1, "b", 4), job(2, "b", 2, at=1), job(3, "a", 3, at=2), job(4, "b", 1, at=3)]
    found = records(CapacityScheduler(), jobs)
    assert [found[number].first_start_at for number in (1, 2, 3, 4)] == [0.0, 200.0, 100.0, 200.0]


def test_the_first_job_of_a_queue_that_does_not_fit_keeps_what_is_idle():
    jobs = [job(1, "a", 3), job(2, "a", 2, at=1), job(3, "a", 1, at=2), job(4, "b", 1, at=3)]
    found = records(CapacityScheduler(), jobs)
    assert [found[number].first_start_at for number in (2, 3, 4)] == [100.0, 100.0, 100.0]


def test_if_it_preempts_the_job_that_started_last_leaves_and_begins_anew():
    jobs = [job(1, "b", 2), job(2, "b", 2, at=10), job(3, "a", 2, at=50)]
    found = records(CapacityScheduler(preempts=True), jobs)
    assert found[3].first_start_at == 50.0
    assert (found[1].preemptions, found[2].preemptions) == (0, 1)
    assert found[1].ended_at == pytest.approx(100.0)
    assert found[2].ended_at == pytest.approx(200.0)
    assert records(CapacityScheduler(), jobs)[3].first_start_at == 100.0


def test_packing_puts_a_second_job_beside_the_least_busy_one_and_lets_a_third_wait():
    jobs = [
        job(1, "a", 1, 1000.0, model="ESPnet"),
        job(2, "b", 1, 1000.0, at=1, model="GCN"),
        job(3, "a", 1, at=2, model="DIN"),
        job(4, "a", 1, at=3, model="DIN"),
        job(5, "a", 1, at=4, model="DIN"),
    ]
    found = records(Packing(), jobs, gpus=2)
    assert [found[number].first_start_at for number in (3, 4)] == [2.0, 3.0]
    # GCN and DIN fit side by side, ESPnet and DIN too; the last one waits for a seat
    assert found[3].ended_at == pytest.approx(102.0)
    assert found[5].first_start_at == pytest.approx(102.0)
    assert found[1].ended_at == pytest.approx(1000.0)


def test_packed_jobs_that_compete_delay_tenants_with_a_quota():
    jobs = [job(1, "a", 1, 201.0, model="ESPnet"), job(2, "b", 1, 5000.0, model="ResNet-50")]
    assert records(Packing(), jobs, gpus=1)[1].ended_at == pytest.approx(1052.0, rel=0.01)


def test_the_comparison_has_the_published_figures_and_every_seed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(antman, "CHOSEN", SMALL)
    monkeypatch.setattr(antman, "OTHERS", ())

    def run(trials: Sequence[Trial]) -> tuple[SimulatedRun, ...]:
        return run_trials(trials, 1, lambda *_: None)

    ratios, each, table_5 = antman.compare(run, (1, 2)).tables
    rows = {row.label: row.figures for row in ratios.rows}
    assert [figure.paper for figure in rows["capacity scheduler"][:2]] == [2.05, 1.76]
    assert [figure.paper for figure in rows["packing"][:2]] == [1.84, 1.67]
    assert all(len(figure.ours) == 2 for row in (*ratios.rows, *each.rows) for figure in row.figures)
    preempting = next(row for row in each.rows if row.label == "capacity scheduler, preempting")
    assert 46.0 in [figure.paper for figure in preempting.figures]
    for row in table_5.rows:
        assert sum(figure.paper for figure in row.figures) == pytest.approx(100.0)
        assert [sum(seed) for seed in zip(*(figure.ours for figure in row.figures), strict=True)] == [
            pytest.approx(100.0)
        ] * 2
