"""What docs/howto says of job_submit.lua and of a scavenger partition, on a real cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo_lab import Lab
from flexo_lab.errors import LabFailed

EMPTY = """
function slurm_job_submit(job_desc, part_list, submit_uid)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
"""
"""What docs/howto/remove.md leaves of the example's job_submit.lua."""
SOON_S = 60


@pytest.fixture(scope="module")
def site(make_lab: LabFactory) -> Iterator[Lab]:
    """One node with two GPUs, and a partition scavenger between flex and train."""
    lab = make_lab(nodes=1, gpus_per_node=2, infer_nodes=0, flexod=False)
    preempted = ["PreemptMode=REQUEUE", "GraceTime=2"]
    lab.run(["scontrol", "create", "PartitionName=scavenger", "Nodes=t1", "PriorityTier=2", *preempted])
    lab.run(["scontrol", "update", "PartitionName=flex", "PriorityTier=1", "GraceTime=2"])
    yield lab
    lab.down()


@pytest.fixture
def quiet(site: Lab) -> Iterator[Lab]:
    """That site without jobs."""
    yield site
    cancel_all_jobs(site)


def submit(lab: Lab, partition: str) -> str:
    """A job that needs both GPUs for as long as it may."""
    options = ["--parsable", "--output=/dev/null", "--mem=100", "--time=10", "-n1", "--gres=gpu:2"]
    return lab.run(["sbatch", *options, f"--partition={partition}", "--wrap=sleep 600"]).stdout.strip()


def state(lab: Lab, job_id: str) -> str:
    said = lab.run(["squeue", "--noheader", "--format=%T", f"--jobs={job_id}"], check=False)
    return said.stdout.strip()


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {SOON_S} s"
        time.sleep(0.5)


def write_job_submit(lab: Lab, text: str) -> None:
    lab.layout.job_submit.write_text(text)
    later = time.time() + 10  # slurmctld reads the file again when it is newer than its last look
    os.utime(lab.layout.job_submit, (later, later))


def test_a_scavenger_job_takes_gpus_of_satellites_and_an_ordinary_job_takes_its(quiet: Lab) -> None:
    satellite = submit(quiet, "flex")
    wait(lambda: state(quiet, satellite) == "RUNNING", "the job in flex runs")
    scavenger = submit(quiet, "scavenger")
    wait(lambda: state(quiet, scavenger) == "RUNNING", "the job in scavenger runs")
    assert state(quiet, satellite) != "RUNNING"
    ordinary = submit(quiet, "train")
    wait(lambda: state(quiet, ordinary) == "RUNNING", "the job in train runs")
    assert state(quiet, scavenger) == "PENDING"  # requeued


@pytest.mark.thorough  # each restart that fails takes half a minute
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('local elastic = dofile("/nowhere/job_submit_elastic.lua")\n' + EMPTY, "cannot open /nowhere/"),
        ("-- no function\n", "missing required function slurm_job_submit"),
    ],
    ids=["a missing module", "missing functions"],
)
def test_a_wrong_job_submit_lua_is_noticed_when_slurmctld_is_restarted_and_cannot_start(
    quiet: Lab, text: str, said: str
) -> None:
    whole = quiet.layout.job_submit.read_text()
    try:
        write_job_submit(quiet, text)
        running = submit(quiet, "train")  # slurmctld goes on with the file that it has read
        wait(lambda: state(quiet, running) == "RUNNING", "a job that is submitted meanwhile runs")
        with pytest.raises(LabFailed, match=said):
            quiet.restart_slurmctld()
    finally:
        write_job_submit(quiet, whole)
        quiet.restart_slurmctld()


def test_what_removing_leaves_of_job_submit_lua_lets_slurmctld_start_and_take_jobs(quiet: Lab) -> None:
    whole = quiet.layout.job_submit.read_text()
    try:
        write_job_submit(quiet, EMPTY)
        quiet.restart_slurmctld()
        job_id = submit(quiet, "train")
        wait(lambda: state(quiet, job_id) == "RUNNING", "a job runs")
    finally:
        write_job_submit(quiet, whole)
        quiet.restart_slurmctld()
