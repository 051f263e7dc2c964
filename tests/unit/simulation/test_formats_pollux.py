"""The reader of Pollux' workloads: jobs of measured applications, times as they are, what users chose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_application import write_application
from traces import needs_traces

from flexo.model.ranges import Range
from flexo.model.training import NodeShare
from flexo_simulation.costs import POLLUX
from flexo_simulation.formats import pollux
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.formats.registry import FORMATS
from flexo_simulation.pollux_training import PolluxTraining
from flexo_simulation.workload import BadLine

HEADER = "name,time,application,num_replicas,batch_size\n"
GOOD = "bert-0,53,bert,2,16\n"


@pytest.fixture
def workloads(tmp_path):
    """Where workloads lie beside the profiles of one application."""
    write_application(tmp_path / "profiles" / "bert")
    folder = tmp_path / "workloads"
    folder.mkdir()
    return folder


def write(folder, text):
    path = folder / "w.csv"
    path.write_text(text)
    return path


def test_jobs_have_what_their_users_chose_and_what_they_could_have(workloads):
    (job,) = pollux.read(write(workloads, HEADER + GOOD), ReadOptions()).jobs
    assert (job.name, job.application, job.requested_workers) == ("bert-0", "bert", 2)
    assert job.workers == Range(1, 64)
    assert job.batch == Range(8, 32)
    assert isinstance(job.training, PolluxTraining)
    assert (job.training.batch, job.training.declared) == (16, True)


def test_times_are_not_counted_from_the_first_job_because_rounds_are_not(workloads):
    (job,) = pollux.read(write(workloads, HEADER + GOOD), ReadOptions()).jobs
    assert job.submitted_at == 53.0


def test_profiles_lie_beside_the_workloads_or_where_it_is_said(workloads, tmp_path):
    elsewhere = write(tmp_path, HEADER + GOOD)
    with pytest.raises(BadTrace, match="--profiles"):
        pollux.read(elsewhere, ReadOptions())
    assert pollux.read(elsewhere, ReadOptions(profiles=tmp_path / "profiles")).jobs


def test_a_profile_that_is_not_whole_is_named(workloads, tmp_path):
    (tmp_path / "profiles" / "bert" / "placements.csv").unlink()
    with pytest.raises(BadTrace, match=r"placements\.csv"):
        pollux.read(write(workloads, HEADER + GOOD), ReadOptions())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x,1,gpt9,1,16", "application is 'gpt9': it takes one of bert, cifar10"),
        ("x,1,bert,0,16", "num_replicas is '0': it takes a whole number from 1"),
        ("x,1,bert,1,7", "batch_size is '7': it takes 8 to 32, as bert was measured"),
        ("x,-5,bert,1,16", "time is '-5': it takes seconds from 0"),
        ("x,1,bert,1", "has 4 cells where the header has 5"),
    ],
)
def test_a_line_that_makes_no_sense_says_what_is_allowed(workloads, line, why):
    found = pollux.read(write(workloads, f"{HEADER}{line}\n{GOOD}"), ReadOptions(skip_bad=True))
    assert len(found.jobs) == 1
    (bad,) = found.skipped
    assert bad == BadLine(2, bad.why)
    assert bad.why.startswith(why)


def test_jobs_may_choose_their_batch_and_keep_their_epochs_to_themselves(workloads):
    found = pollux.read(write(workloads, HEADER + GOOD), ReadOptions())
    (job,) = pollux.adapted(found, choose_batch=True, declare=False).jobs
    assert isinstance(job.training, PolluxTraining)
    assert (job.training.batch, job.training.declared) == (0, False)
    limited = replace(found.jobs[0], workers=Range(1, 5))
    assert pollux.adapted(found, choose_batch=False, declare=True) == replace(found, jobs=(limited,))


def test_a_job_with_its_users_batch_has_no_more_workers_than_the_batch_can_be_split_among(workloads):
    found = pollux.read(write(workloads, HEADER + GOOD), ReadOptions())
    (kept,) = pollux.adapted(found, choose_batch=False, declare=True).jobs
    assert isinstance(kept.training, PolluxTraining)
    least = kept.training.application.limits.local.min
    most = kept.workers.max
    assert -(-16 // most) >= least > -(-16 // (most + 1))
    wide = replace(found, jobs=(replace(found.jobs[0], requested_workers=40),))
    (asked,) = pollux.adapted(wide, choose_batch=False, declare=True).jobs
    assert asked.workers.max == 40


def test_a_cautious_job_expects_less_of_sizes_that_it_has_not_tried(workloads):
    found = pollux.read(write(workloads, HEADER + GOOD), ReadOptions())
    rates = []
    for caution in (0.0, 1.0):
        (job,) = pollux.adapted(found, choose_batch=False, declare=True, caution=caution).jobs
        run = job.training.begin()
        run.advance(100.0, (NodeShare("n1", 1),), 0)
        speed = run.speed()
        assert speed is not None
        rates.append(speed.rate(2, 1))
    hopes, expects = rates
    assert 0 < expects < hopes


def test_the_format_brings_the_setting_of_its_authors():
    assert (FORMATS["pollux"].interval_s, FORMATS["pollux"].costs) == (60.0, POLLUX)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6])
def test_published_workloads_are_read_whole_and_ncf_has_one_gpu(number):
    found = FORMATS["pollux"].read(needs_traces(f"pollux/workloads/workload-{number}.csv"), ReadOptions())
    assert len(found.jobs) == 160
    assert {job.workers for job in found.jobs if job.application == "ncf"} == {Range(1, 1)}
