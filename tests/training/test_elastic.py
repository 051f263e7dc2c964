"""Elastic jobs on real Slurm with real Horovod: they grow, give back, lose workers, and nothing is lost."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from elastic_jobs import (
    SCRIPTS,
    Job,
    Submit,
    agents_of_satellites,
    base_node,
    take_nodes,
    wait_for_start,
    went_on,
)
from native_horovod import BOTH_CORES
from thorough import rare

from flexo_lab import Lab
from horovod_elastic.core.choice import HOROVOD, VARIABLE

pytestmark = pytest.mark.slow

on_both = pytest.mark.parametrize("core", BOTH_CORES)
"""All other jobs run on the default."""


@on_both
def test_loaders_and_samplers_go_through_growth_and_slurms_own_preemption(
    submit: Submit, alone: Lab, core: str
) -> None:
    job = submit("sampler_and_loaders.py", elastic="1-3", environment=(f"{VARIABLE}={core}",))
    job.wait_for_size(3)
    asked = time.time()
    rigid = take_nodes(alone, 3, 3, 4)
    job.wait_for_size(1, after=asked)
    wait_for_start(job, rigid)
    job.wait_for_size(3, after=asked)
    job.stop()
    job.check_finished()
    check_samples(job)
    assert "Traceback" not in job.output()
    assert "SIGTERM" not in job.output()


def check_samples(job: Job) -> None:
    """Every sample of every epoch that ended was used once; ElasticSampler repeats a few to come out even."""
    kept = job.events("kept")
    samples: dict[int, Counter[int]] = {}
    for event in kept:
        samples.setdefault(event["epoch"], Counter()).update(event["samples"])
    ended = max(samples)  # the last one may have been stopped by the test only between epochs
    widest = max(job.sizes())
    assert ended >= 1
    for epoch, counted in samples.items():
        assert set(counted) == set(range(48)), f"epoch {epoch} lost samples"
        assert sum(counted.values()) - 48 < widest * len(job.sizes()), f"epoch {epoch} repeated samples"
    steps = [event["step"] for event in kept if event["rank"] == 0]
    assert steps == sorted(steps)


@pytest.mark.thorough
def test_what_a_script_does_on_rank_0_before_the_loop_is_done_once(submit: Submit, alone: Lab) -> None:
    """And the learning rate follows the size, in those who stay and in those who come."""
    options = ("-N", "2", "-n", "3", "--gpus-per-task=1")
    job = submit("scaled_rate.py", options=options, elastic="3-5")
    job.wait_for_size(5)
    job.stop()
    done = job.check_finished()
    job.check_steps()
    assert job.output().count("the experiment begins") == 1
    before = job.events("before")
    assert sorted(event["rank"] for event in before) == [0, 1, 2, 3, 4]
    assert {event["size"] for event in before if event["rank"] > 2} == {5} or job.sizes() != [3, 5]
    for event in [*job.events("enter"), *done]:
        assert event["rate"] == pytest.approx(0.01 * event["size"])


@pytest.mark.thorough
def test_a_distributed_sampler_made_before_the_loop_follows_the_size(submit: Submit, alone: Lab) -> None:
    """Without that, newcomers' epochs would be shorter than those of who began alone, and ranks disagree."""
    job = submit("plain_sampler.py", elastic="1-3")
    job.wait_for_size(3)
    asked = time.time()
    rigid = take_nodes(alone, 3, 3, 4)
    job.wait_for_size(1, after=asked)
    wait_for_start(job, rigid)
    job.wait_for_size(3, after=asked)
    job.stop()
    job.check_finished()
    job.check_steps()
    assert {(event["size"], event["batches"]) for event in job.events("enter")} >= {(1, 12), (3, 4)}
    assert all(event["batches"] == 12 // event["size"] for event in job.events("enter"))


@pytest.mark.thorough
def test_collectives_before_the_loop_do_not_keep_newcomers_out(submit: Submit, alone: Lab) -> None:
    """Nor do objects of different types in one broadcast, which Horovod would take for two."""
    job = submit("greets_first.py", elastic="1-2")
    job.wait_for_size(2)
    job.stop()
    done = job.check_finished()
    job.check_steps()
    assert {event["mean"] for event in done} == {0.5}
    assert all(event["told"] == event["step"] for event in job.events("enter"))


@pytest.mark.thorough
def test_workers_of_two_gpus_come_two_gpus_at_a_time(submit: Submit, alone: Lab) -> None:
    options = ("-n", "1", "--gpus-per-task=2", "--cpus-per-task=2", "--mem-per-cpu=500")
    job = submit("counting.py", options=options, elastic="1-3")
    job.wait_for_size(3)
    for satellite, _ in job.satellites():
        shown = alone.run(["scontrol", "show", "job", str(satellite), "--oneliner"]).stdout
        workers = int(re.search(r"workers=(\d+)", shown)[1])  # type: ignore[index]
        assert f"gres:gpu:{2 * workers}" in shown
        assert f"NumCPUs={2 * workers}" in shown
        assert f"mem={1000 * workers}M" in shown
    job.stop()
    job.check_finished()
    job.check_steps()


@on_both
def test_killed_workers_and_agents_cost_no_committed_batch(submit: Submit, alone: Lab, core: str) -> None:
    options, environment = ("-n", "2", "--gpus-per-task=1"), (f"{VARIABLE}={core}",)
    job = submit("counting.py", options=options, elastic="2-4", environment=environment)
    job.wait_for_size(4)
    everybody, ended = set(job.workers()), set[int]()
    for rank in (1, 2, 0):  # beside rank 0 in the base, the first of the satellite, who leads
        victim = next(event for event in reversed(job.events("enter")) if event["rank"] == rank)
        killed = time.time()
        os.kill(victim["pid"], signal.SIGKILL)
        job.wait_until("training without it", lambda killed=killed: went_on(job, killed))
        job.wait_for_size(4, after=killed)
        survivors, everybody = everybody - {victim["pid"]}, set(job.workers())
        assert len(everybody) == 4
        assert victim["pid"] not in everybody
        ended |= survivors - everybody
        assert survivors & everybody, "who survives is the same process"
    # Horovod's own threads may end a survivor, too (docs/explanation/core.md). The torch core's do not.
    assert not ended or core == HOROVOD, job.findings()

    killed, step = time.time(), job.steps_committed()[-1]
    agents_of_satellites(job)[0].kill()
    job.wait_until("training without it", lambda: job.steps_committed()[-1] > step + 20)
    job.wait_until("another agent in its place", lambda: agents_of_satellites(job))
    assert not went_on(job, killed), "its workers have trained on in the same generation"
    assert set(job.workers()) == everybody
    agents_of_satellites(job)[0].parent().kill()  # its supervisor: so ends what a node runs
    job.wait_for_size(2, after=killed)
    assert {int(pid) for pid in job.committing(2, after=killed)} < everybody
    job.stop()
    done = job.check_finished()
    job.check_steps(lost=4 + len(ended))
    # What was summed up is right only if the survivors went on from exactly their last commit.
    assert {event["total"] for event in done} == {sum(range(done[0]["steps"]))}


def test_flexod_may_die_and_come_back(submit: Submit, alone: Lab) -> None:
    job = submit("counting.py", elastic="1-3")
    job.wait_for_size(3)
    before = job.satellites()
    alone.stop_flexod(kill=True)
    try:
        step = job.steps_committed()[-1]
        job.wait_until("training without flexod", lambda: job.steps_committed()[-1] > step + 10)
    finally:
        alone.start_flexod()
    job.wait_until("the leader to come back", lambda: job.output().count("attached to flexod") == 2)
    step = job.steps_committed()[-1]
    job.wait_until("training with it", lambda: job.steps_committed()[-1] > step + 30)
    assert job.satellites() == before
    assert job.sizes() == [1, 3] or job.sizes() == [1, 2, 3]
    job.stop()
    job.check_finished()
    job.check_steps()


@pytest.mark.thorough
def test_two_jobs_share_evenly(submit: Submit, alone: Lab) -> None:
    blocker = take_nodes(alone, 3, 2, 3600)
    first = submit("counting.py", "--batch-seconds", "0.3", elastic="1-6")
    wait_for_start(first, blocker)
    second = submit("counting.py", "--batch-seconds", "0.3", elastic="1-6")
    first.wait_until("three workers each", both(first, second, 3))
    for job in (first, second):
        job.stop()
    for job in (first, second):
        job.check_finished()
        job.check_steps()


def both(first: Job, second: Job, size: int) -> Callable[[], bool]:
    return lambda: len(first.committing(size)) == len(second.committing(size)) == size


@pytest.mark.thorough
def test_a_job_may_end_while_newcomers_warm_up(submit: Submit, alone: Lab) -> None:
    job = submit("counting.py", elastic="1-4")
    job.wait_until("a satellite's worker to start", lambda: agents_of_satellites(job))
    job.stop()
    job.check_finished()
    job.check_steps()


def test_scancel_of_the_base_leaves_nothing(submit: Submit, alone: Lab) -> None:
    job = submit("counting.py", elastic="1-3")
    job.wait_for_size(3)
    job.cancel()
    assert job.wait() != 0
    job.check_nothing_left()


@pytest.mark.parametrize("options", [rare(()), ("--handler",)], ids=["default", "own handler"])
def test_scripts_with_signals_and_programs_of_their_own_are_preempted(
    submit: Submit, alone: Lab, options: tuple[str, ...]
) -> None:
    job = submit("own_signals.py", *options, elastic="1-2")
    job.wait_for_size(2)
    asked = time.time()
    rigid = take_nodes(alone, 2, 4, 1, f"--exclude={base_node(job)}")
    job.wait_for_size(1, after=asked)
    wait_for_start(job, rigid)
    job.stop()
    job.check_finished()
    job.check_steps()
    helpers = job.events("early helper", "late helper")
    assert {event["status"] for event in helpers} == {-signal.SIGTERM}
    left_running = [event["left_running"] for event in job.events("before")]
    assert not [pid for pid in left_running if is_running(pid)]


def is_running(pid: int) -> bool:
    """Whether it is more than an entry that nobody has asked about."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_script_that_handles_sigterm_gets_to_when_slurm_signals_the_base(
    submit: Submit, alone: Lab
) -> None:
    job = submit("own_signals.py", "--handler")
    job.wait_for_size(1)
    alone.run(["scancel", "--signal=TERM", str(job.job_id)])  # its steps only, as before a time limit
    assert job.wait() == 143
    assert len(job.events("sigterm")) == 1
    job.check_nothing_left()


@pytest.mark.native
def test_stock_horovodrun_grows_with_the_hosts_that_flexo_names(submit: Submit, alone: Lab) -> None:
    """On a lab all nodes are one host, so that no ssh is needed."""
    here = Path(sys.executable).parent
    python, script = shlex.quote(sys.executable), shlex.quote(str(SCRIPTS / "counting.py"))
    hosts = shlex.quote(f"{shlex.quote(str(here / 'flexo'))} hosts")  # Horovod hands it to a shell
    job = submit(
        "counting.py",
        elastic="1-2",
        launch=f"{python} -m horovod.runner.launch -np 1 --min-np 1 --max-np 2 --network-interfaces lo"
        f" --host-discovery-script {hosts} {python} {script} --log-dir $PWD/logs",
    )
    job.wait_for_size(2)
    job.stop()
    assert job.wait() == 0, job.output()
    job.check_nothing_left()
    assert job.sizes() == [1, 2]
    job.check_steps()
