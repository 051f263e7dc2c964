"""Jobs in Slurm whose gradients Aggregators in their own satellites sum, with one CPU each and no GPU."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import elastic_jobs
import psutil
import pytest
from elastic_jobs import SOMEBODY, TRACE, Job, agent_called
from test_ddp_on_slurm import launch
from test_survival import leaders
from thorough import rare

from flexo_lab import Lab, LabSpec, bring_up, why_unavailable
from flexo_lab.spec import Profile
from horovod_elastic.leader.satellite_sums import SETTLE_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Lab]:
    """Two nodes to train on, and one whose GPU another job holds. There is accounting."""
    if reason := why_unavailable(Profile.ACCOUNTING):
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    name = f"sums-{os.getpid()}"
    lab = bring_up(LabSpec(name=name, nodes=3, gpus_per_node=1, infer_nodes=0, profile=Profile.ACCOUNTING))
    yield lab
    lab.down()


@pytest.fixture
def submit(three_nodes: Lab, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """submit(aggregators) -> Job: a DDP script on t1 and t2 that asks for one Aggregator in a satellite."""

    def submit_one(aggregators: str = "satellites") -> Job:
        hold = ["sbatch", "--parsable", "-w", "t3", "-c", "1", "--gpus=1", "--output=/dev/null"]
        three_nodes.run([*hold, "--wrap", "sleep 1000"])
        folder = three_nodes.scratch / tmp_path.name
        folder.mkdir()
        shutil.chown(folder, SOMEBODY)
        asked = ["--core=service", f"--aggregators={aggregators}", "--aggregator-cores=1"]
        run = launch("plain_ddp.py", "--sleep", "0.05", options=asked)
        options = ("-w", "t1,t2", "-N", "2", "-n", "2", "--gpus-per-task=1")
        return elastic_jobs.submit(
            *(three_nodes, folder, "plain_ddp.py"),
            options=options,
            elastic="2-3",
            launch=run,
            user=SOMEBODY,
            environment=(TRACE,),
        )

    yield submit_one
    for job in three_nodes.run(["squeue", "--noheader", "--format=%A"]).stdout.split():
        three_nodes.run(["scancel", "--quiet", job], check=False)


def serving(job: Job) -> list[psutil.Process]:
    """The processes of Aggregators in the job's satellites with which both nodes are connected."""
    found = {}
    for pid in job.processes():
        try:
            for each in psutil.Process(pid).children():
                if "--no-workers" in each.cmdline() and _joined(each) >= 2:
                    found[each.pid] = each
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def _joined(process: psutil.Process) -> int:
    """How many connections the process has."""
    return sum(each.status == "ESTABLISHED" for each in process.net_connections("tcp"))


def train_on(job: Job) -> None:
    """It makes further steps, and has lost and repeated none."""
    before = len(job.events("step"))
    job.wait_until("steps", lambda: len(job.events("step")) > before + 20)
    taken = [each["taken"] for each in job.events("step") if each["rank"] == 0 and each["world"]]
    assert taken == list(range(1, len(taken) + 1))
    assert "all-reduce" not in job.output()


def until_a_satellite_sums(job: Job) -> psutil.Process:
    """Wait for it. Returns the Aggregator's process."""
    job.wait_until("an Aggregator in a satellite", lambda: serving(job))
    train_on(job)
    ((_, node),) = job.satellites()
    assert node == "t3"
    return serving(job)[0]


def test_a_satellite_without_a_gpu_sums_and_its_ends_cost_no_mini_batch(
    three_nodes: Lab, submit: Callable[..., Job]
) -> None:
    job = submit()
    process = until_a_satellite_sums(job)
    ((satellite, _),) = job.satellites()
    shown = three_nodes.run(["scontrol", "show", "job", str(satellite)]).stdout
    assert "NumCPUs=1 " in shown
    assert "gres" not in shown.lower()
    fields = ["sacct", "-X", "-n", "-P", "-o", "User,Account,Partition", "-j", str(satellite)]
    # slurmdbd writes the partition a moment after the rest.
    charged = f"{SOMEBODY}|research|flex"
    job.wait_until("its accounting", lambda: three_nodes.run(fields).stdout.strip() == charged)
    why = three_nodes.run(["flexo", "why", str(job.job_id)]).stdout
    assert "Aggregators in its own satellites sum its gradients" in why
    assert "t3 (sums)" in why

    worked = sum(process.cpu_times()[:2])
    train_on(job)
    assert sum(process.cpu_times()[:2]) > worked

    process.send_signal(signal.SIGKILL)
    train_on(job)
    job.wait_until("the Aggregator again", lambda: [each for each in serving(job) if each.pid != process.pid])
    train_on(job)

    three_nodes.run(["scancel", str(satellite)])
    job.wait_until("its end", lambda: not job.satellites())
    assert "is not used any more" not in job.output(), "the sums had moved before"
    train_on(job)

    job.cancel()
    job.check_nothing_left()


@pytest.mark.thorough
def test_slurm_takes_the_cpu_back_after_the_sums_have_moved(
    three_nodes: Lab, submit: Callable[..., Job]
) -> None:
    job = submit()
    until_a_satellite_sums(job)
    all_cpus = ["sbatch", "--parsable", "-w", "t3", "-c", "7", "--output=/dev/null", "--wrap", "sleep 1000"]
    needs_it = three_nodes.run(all_cpus).stdout.strip()
    job.wait_until(
        "the ordinary job",
        lambda: "R" in three_nodes.run(["squeue", "-h", "-j", needs_it, "-o", "%t"]).stdout.split(),
    )
    job.wait_until("no satellite", lambda: not job.satellites())
    assert "is not used any more" not in job.output(), "the sums had moved before"
    train_on(job)
    why = three_nodes.run(["flexo", "why", str(job.job_id)]).stdout
    assert "the Aggregators of its own nodes sum its gradients for now" in why
    job.cancel()
    job.check_nothing_left()


@pytest.mark.thorough
def test_a_killed_leader_leaves_the_sums_where_they_are(submit: Callable[..., Job]) -> None:
    job = submit()
    process = until_a_satellite_sums(job)
    (first,) = leaders(job)
    agent_called(job, first).kill()
    job.wait_until("another leader", lambda: len(leaders(job)) == 2)
    train_on(job)
    time.sleep(2 * SETTLE_S)
    train_on(job)
    assert [each.pid for each in serving(job)] == [process.pid]
    assigned = job.trace("aggregators")
    assert [each["assigned"] for each in assigned] == [1], "the next leader has assigned nothing anew"
    job.cancel()
    job.check_nothing_left()


@pytest.mark.thorough
def test_flexod_tries_a_satellite_for_a_job_that_leaves_the_choice_and_judges_it_by_its_iterations(
    three_nodes: Lab, submit: Callable[..., Job]
) -> None:
    """Which one is faster depends on what else this machine does. Both ends are right."""
    job = submit("auto")

    def why() -> str:
        return three_nodes.run(["flexo", "why", str(job.job_id)], check=False).stdout

    job.wait_until("its own iterations", lambda: "(--aggregators=auto): its iterations are measured" in why())
    until_a_satellite_sums(job)
    assert "its workers have one CPU each" in why()
    job.wait_until("the comparison", lambda: "s there, and" in why())
    train_on(job)
    told = why()
    if "it rests" in told:
        assert "own nodes sum its gradients (--aggregators=auto)" in told
        job.wait_until("no satellite", lambda: not job.satellites())
    else:
        assert "t3 (sums)" in told
    train_on(job)
    job.cancel()
    job.check_nothing_left()


@pytest.mark.parametrize("flexod", [rare("runs"), "is killed"])
def test_nothing_is_left_of_a_job_that_is_killed_with_its_leader(
    three_nodes: Lab, submit: Callable[..., Job], flexod: str
) -> None:
    job = submit()
    until_a_satellite_sums(job)
    if flexod == "is killed":
        three_nodes.stop_flexod(kill=True)
        train_on(job)
    job.lab.run(["scancel", "--signal=KILL", "--full", str(job.job_id)])
    job.check_nothing_left()
