"""Which jobs are taken to be elastic, how fast they then are, and GPU types on clusters that have none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from little_simulations import trace_job
from says import says

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.ranges import Range
from flexo_protos.resources import Resources
from flexo_simulation.alone import alone_s
from flexo_simulation.elasticity import Elasticity, Of, drawn, made_elastic
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.gpu_types import for_cluster
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.speeds import loaded, with_tables
from flexo_simulation.workload import Workload

SIZES = (1, 2, 3, 8, 16)


def workload(number: int = 400) -> Workload:
    return Workload("test", tuple(trace_job(n, workers=SIZES[n % 5]) for n in range(1, number + 1)))


def elastic(found: Workload) -> set[int]:
    return {job.job_id for job in found.jobs if job.workers.max > job.workers.min}


def test_a_share_of_the_jobs_with_two_gpus_and_more_is_elastic():
    found = made_elastic(workload(), Elasticity(share=0.2), seed=1)
    assert all(job.requested_workers > 1 for job in found.jobs if job.job_id in elastic(found))
    assert 0.14 < len(elastic(found)) / sum(job.requested_workers > 1 for job in found.jobs) < 0.26


def test_the_same_seed_chooses_the_same_jobs_and_more_of_them_at_a_larger_share():
    small, large = (
        elastic(made_elastic(workload(), Elasticity(share=share), seed=1)) for share in (0.1, 0.5)
    )
    assert small < large
    assert small == elastic(made_elastic(workload(), Elasticity(share=0.1), seed=1))
    assert small != elastic(made_elastic(workload(), Elasticity(share=0.1), seed=2))


def test_elastic_jobs_can_have_half_to_twice_their_size():
    found = made_elastic(workload(), Elasticity(share=1.0), seed=1)
    assert {job.requested_workers: job.workers for job in found.jobs} == {
        1: Range(1, 1),
        2: Range(1, 4),
        3: Range(1, 6),
        8: Range(4, 16),
        16: Range(8, 32),
    }


def test_among_all_jobs_those_of_one_gpu_may_be_elastic_too():
    found = made_elastic(workload(), Elasticity(share=1.0, of=Of.ALL), seed=1)
    assert found.jobs[4].workers == Range(1, 2)


@pytest.mark.parametrize(("asked", "range_of"), [(8, Range(2, 12)), (16, Range(2, 16)), (1, Range(1, 12))])
def test_absolute_sizes_never_leave_the_requested_one_out(asked, range_of):
    wish = Elasticity(share=1.0, of=Of.ALL, min_workers=2, max_workers=12)
    found = made_elastic(Workload("test", (trace_job(1, workers=asked),)), wish, seed=1)
    assert found.jobs[0].workers == range_of


def test_without_a_share_ranges_stay_as_the_file_has_them_and_with_one_the_file_does_not_count():
    before = Workload("test", (trace_job(1, workers="2-8", requested_workers=4),))
    assert made_elastic(before, Elasticity(), seed=1).jobs == before.jobs
    assert made_elastic(before, Elasticity(share=0.0), seed=1).jobs[0].workers == Range(4, 4)


def test_fungible_and_heterogeneous_jobs_are_drawn_independently():
    found = made_elastic(workload(), Elasticity(fungible_share=0.5, heterogeneous_share=0.5), seed=1)
    kinds = {(job.fungible, job.heterogeneous) for job in found.jobs}
    assert len(kinds) == 4


def test_what_is_drawn_is_spread_evenly():
    numbers = [drawn(n, 7, "x") for n in range(4000)]
    assert all(0 <= number < 1 for number in numbers)
    assert all(340 < sum(low <= 10 * number < low + 1 for number in numbers) < 460 for low in range(10))


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "fast.csv").write_text("global_batch_size,1,2,4\n64,1.0,2.0,4.0\n")
    (tmp_path / "slow.csv").write_text("global_batch_size,1,2,4\n64,1.0,1.5,1.6\n128,1.0,1.6,1.8\n")
    return loaded(tmp_path)


def test_elastic_jobs_scale_like_a_measured_model_and_take_as_long_on_their_own_size(tables):
    jobs = made_elastic(workload(40), Elasticity(share=1.0), seed=1)
    found = with_tables(jobs, tables, "slow", seed=1)
    for before, after in zip(jobs.jobs, found.jobs, strict=True):
        assert alone_s(after.training, after.requested_workers) == pytest.approx(100.0)
        if after.job_id not in elastic(found):
            assert after.training == before.training
    two = next(job for job in found.jobs if job.requested_workers == 2)
    assert alone_s(two.training, 4) > 80


def test_any_model_is_drawn_where_none_is_named(tables):
    jobs = made_elastic(workload(60), Elasticity(share=1.0), seed=1)
    speeds = {job.training.speed for job in with_tables(jobs, tables, "", seed=1).jobs} - {None}
    assert len(speeds) == 3


def test_a_model_that_is_in_no_table_is_refused(tables):
    with pytest.raises(BadTrace, match=r"'gpt9'.*\bfast, slow\b"):
        with_tables(workload(), tables, "gpt9", seed=1)


def test_a_folder_without_tables_is_refused(tmp_path):
    with pytest.raises(BadTrace, match="--profiles: "):
        loaded(tmp_path)


def test_jobs_with_a_speed_of_their_own_keep_it(tables):
    own = LinearTraining(100.0, next(iter(tables.speeds.values())))
    jobs = Workload("test", (trace_job(1, workers="1-4", training=own),))
    assert with_tables(jobs, tables, "", seed=1).jobs[0].training is own


def test_on_a_cluster_without_types_any_gpu_does_and_that_is_said():
    typed = replace(trace_job(1), shape=Resources(1, 1, gpu_type="v100"))
    jobs = Workload("test", (typed, trace_job(2)))
    found = for_cluster(jobs, (NodeGroup(2, 4),))
    assert [job.shape.gpu_type for job in found.jobs] == ["", ""]
    [note] = found.notes
    assert says(note, "type of GPU", 1)
    assert for_cluster(jobs, (NodeGroup(2, 4, "v100"),)) is jobs
