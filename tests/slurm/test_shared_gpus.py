"""Satellites on GPUs that other jobs hold, in a real Slurm: held, kept apart, refused to everybody else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo.clusters.base import Site
from flexo.clusters.slurm.adapter import SlurmCluster
from flexo.clusters.slurm.releases import Release
from flexo.clusters.slurm.settings import SlurmSettings
from flexo.model.queue import WaitReason
from flexo.model.sharing import number_of, shared_gpus_in
from flexo.sharing.hosts import offered
from flexo_lab import Lab
from flexo_lab.requirements import installed_release

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

USER = "games"
TAG = "flexo-satellite base=7 restart=0 grant=g1 workers=1"
SATELLITE = ("-p", "shared", "--gres=spare:s1:1", "-n1", "-c2", "-t5", f"--comment={TAG}")


@pytest.fixture(scope="module")
def sharing_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """One node with two GPUs that can be shared. Without flexod, nobody releases or cancels anything."""
    lab = make_lab(nodes=1, gpus_per_node=2, infer_nodes=0, sharing=True, flexod=False)
    yield lab
    lab.down()


@pytest.fixture
def quiet(sharing_lab: Lab) -> Iterator[Lab]:
    """That lab without jobs."""
    yield sharing_lab
    cancel_all_jobs(sharing_lab)


def sbatch(lab: Lab, *options: str) -> tuple[int | None, str]:
    """A job of USER that sleeps: its id, None if it is refused, and what its user was told."""
    command = ["sbatch", "--parsable", "-o", "/dev/null", *options]
    done = lab.run(command, user=USER, check=False, stdin="#!/bin/sh\nexec sleep 600\n")
    return (int(done.stdout) if done.returncode == 0 else None), done.stderr


def submitted(lab: Lab, *options: str) -> int:
    job_id, told = sbatch(lab, *options)
    assert job_id is not None, told
    return job_id


def field(lab: Lab, job_id: int, name: str) -> str:
    shown = lab.run(["scontrol", "show", "job", str(job_id), "-o"]).stdout.split()
    return next(word.partition("=")[2] for word in shown if word.startswith(f"{name}="))


def wait_for(lab: Lab, job_id: int, state: str, bound_s: float = 60) -> None:
    deadline = time.monotonic() + bound_s
    while (now := field(lab, job_id, "JobState")) != state:
        assert time.monotonic() < deadline, f"job {job_id} is {now}, not {state}"
        time.sleep(0.3)


def as_user(lab: Lab, *command: str) -> str:
    """What USER is told by a command that has to fail; "" where it did not."""
    done = lab.run(command, user=USER, check=False)
    return (done.stderr or done.stdout or "no words") if done.returncode else ""


def as_slurm_user(lab: Lab, *command: str) -> None:
    """As flexod's account, which may release jobs."""
    lab.run(command, user="slurm")


def reader(lab: Lab) -> SlurmCluster:
    settings = SlurmSettings(conf=lab.layout.slurm_conf)
    return SlurmCluster(settings, Site(shared_partition="shared"))


def spare_gpus(lab: Lab) -> dict[int, bool]:
    """Whether each GPU that can be shared has a second job, as flexod sees it."""
    (node,) = reader(lab).observe().nodes
    used = [number_of(device) for device in shared_gpus_in(node.allocated.devices)]
    return {number: number in used for number in sorted(offered(node))}


def test_a_satellite_is_held_until_flexods_account_releases_it(quiet: Lab) -> None:
    guarantee = submitted(quiet, "-n2", "-c1", "--gpus-per-task=1", "--elastic-cohost")
    wait_for(quiet, guarantee, "RUNNING")
    assert field(quiet, guarantee, "AdminComment") == "flexo{workers=2-2;cohost}"
    satellite = submitted(quiet, *SATELLITE)
    time.sleep(6)  # three cycles of Slurm's main scheduler
    assert field(quiet, satellite, "JobState") == "PENDING"
    assert field(quiet, satellite, "Priority") == "0"
    assert field(quiet, satellite, "Requeue") == "0"
    held = next(job for job in reader(quiet).observe().jobs if job.job_id == satellite)
    assert (held.wait, held.satellite is not None) == (WaitReason.HELD, True)
    assert as_user(quiet, "scontrol", "release", str(satellite))
    assert as_user(quiet, "scontrol", "update", f"JobId={satellite}", "Priority=100")
    assert as_user(quiet, "scontrol", "update", f"JobId={satellite}", "Gres=spare:s0:1")
    assert as_user(quiet, "scontrol", "update", f"JobId={satellite}", "Partition=train")
    assert as_user(quiet, "scontrol", "update", f"JobId={satellite}", "Requeue=1")
    assert field(quiet, satellite, "Priority") == "0"
    assert spare_gpus(quiet) == {0: False, 1: False}
    as_slurm_user(quiet, "scontrol", "release", str(satellite))
    wait_for(quiet, satellite, "RUNNING")
    assert spare_gpus(quiet) == {0: False, 1: True}
    assert field(quiet, guarantee, "JobState") == "RUNNING"


def test_one_satellite_at_a_time_has_a_gpu(quiet: Lab) -> None:
    first, second = submitted(quiet, *SATELLITE), submitted(quiet, *SATELLITE)
    as_slurm_user(quiet, "scontrol", "release", f"{first},{second}")
    wait_for(quiet, first, "RUNNING")
    time.sleep(6)
    assert field(quiet, second, "JobState") == "PENDING"


@pytest.mark.parametrize(
    "options",
    [
        ("--gres=spare:s1:1",),
        ("--gres=spare:1", "-p", "train"),
        ("--gres=gpu:1,spare:s0:1",),
        ("--gres=spare:s1:1", "-p", "train", f"--comment={TAG}"),
        ("--gres=spare:s1:1", "-p", "flex", f"--comment={TAG}"),
        ("--gres=spare:s1:1", "-p", "train,shared", f"--comment={TAG}"),
        ("--gres=spare:s1:1", "-p", "shared"),
        ("-p", "shared"),
        ("-p", "shared", "--comment=no flexo-satellite "),
    ],
)
def test_a_forged_request_is_refused(quiet: Lab, options: tuple[str, ...]) -> None:
    job_id, told = sbatch(quiet, "-n1", *options)
    assert job_id is None
    assert "flexo: " in told
    assert "--elastic-opportunistic=" in told


def test_a_request_for_each_task_is_refused_as_well(quiet: Lab) -> None:
    if installed_release() < Release(23, 2):
        pytest.skip("this Slurm has no --tres-per-task")
    job_id, told = sbatch(quiet, "-n1", "--tres-per-task=gres/spare:s1:1")
    assert job_id is None
    assert "flexo: " in told


def test_no_job_comes_to_a_spare_gpu_by_a_change(quiet: Lab) -> None:
    waiting = submitted(quiet, "-n1", "-H")
    for change in ("Partition=shared", "Gres=spare:s1:1", "Partition=train,shared"):
        assert as_user(quiet, "scontrol", "update", f"JobId={waiting}", change)
    assert field(quiet, waiting, "Partition") == "train"


def test_an_opportunistic_job_is_recorded_and_its_base_holds_cpus_alone(quiet: Lab) -> None:
    base = submitted(quiet, "-n1", "-c4", "--mem=1G", "--elastic-opportunistic=1-4,auto")
    wait_for(quiet, base, "RUNNING")
    assert field(quiet, base, "AdminComment") == "flexo{workers=1-4;opportunistic=auto}"
    read = next(job for job in reader(quiet).observe().jobs if job.job_id == base)
    assert read.elastic is not None
    assert (read.elastic.opportunistic, read.elastic.auto, read.elastic.base_workers) == (True, True, 0)
    assert read.resources.gpus == 0
    job_id, told = sbatch(quiet, "-n1", "--gres=gpu:1", "--elastic-opportunistic=1-4")
    assert (job_id, "no GPUs" in told) == (None, True)


def test_slurm_takes_a_satellite_back_when_an_ordinary_job_needs_its_cpus(quiet: Lab) -> None:
    satellite = submitted(quiet, *SATELLITE[:-3], "-c6", *SATELLITE[-2:])
    as_slurm_user(quiet, "scontrol", "release", str(satellite))
    wait_for(quiet, satellite, "RUNNING")
    ordinary = submitted(quiet, "-n1", "-c6")
    wait_for(quiet, ordinary, "RUNNING", bound_s=90)
    assert field(quiet, satellite, "JobState") == "PREEMPTED"
