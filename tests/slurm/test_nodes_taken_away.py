"""Nodes that are drained, rebooted or lost under satellites and under a base, on a real Slurm."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import psutil
import pytest
from conftest import LabFactory, cancel_all_jobs
from matrix.stand_in import StandIn, field, state, wait

from flexo_lab import Lab
from flexo_lab.processes import belonging_to, daemons_of, kill, start_daemonizing
from flexo_lab.requirements import program


@pytest.fixture(scope="module")
def own_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """Three nodes with one GPU each: a job's base on one, room for a satellite on the two others."""
    lab = make_lab(nodes=3, gpus_per_node=1, infer_nodes=0)
    with lab.layout.slurm_conf.open("a") as conf:
        conf.write(f"RebootProgram={program('true')}\n")
    lab.run(["scontrol", "reconfigure"])
    yield lab
    lab.down()


@pytest.fixture
def job(own_lab: Lab) -> Iterator[StandIn]:
    """An elastic job that trains on its base's node and in one satellite; all nodes are usable afterwards."""
    job = StandIn.submitted(own_lab, "1-2")
    job.wait_for_workers(2)
    yield job
    cancel_all_jobs(own_lab)


def _update(lab: Lab, node: str, state: str) -> None:
    reason = [] if state == "RESUME" else ["Reason=as the test says"]
    lab.run(["scontrol", "update", f"NodeName={node}", f"State={state}", *reason])


def _flags(lab: Lab, node: str) -> set[str]:
    """{"IDLE", "DRAIN"}"""
    shown = lab.run(["scontrol", "show", "node", node, "--oneliner"]).stdout
    return set(shown.partition(" State=")[2].split()[0].split("+"))


def _kill_slurmd(lab: Lab, node: str) -> None:
    (pid,) = (daemon.pid for daemon in daemons_of(lab.directory) if daemon.name == f"slurmd {node}")
    kill([psutil.Process(pid)])


def _power_off(lab: Lab, node: str, job_id: int) -> None:
    """The node, with all processes there: of slurmd, and of the one job on it."""
    _kill_slurmd(lab, node)
    steps = [each for each in belonging_to(lab.directory) if f"slurmstepd: [{job_id}." in _command(each)]
    assert steps
    kill([each for step in steps for each in (step, *step.children(recursive=True))])


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _boot(lab: Lab, node: str) -> None:
    """Start its slurmd, which says that the node was booted just now."""
    command = [program("slurmd"), "-b", "-f", str(lab.layout.slurm_conf), "-N", node]
    start_daemonizing(command, lab.layout.logs / f"slurmd-{node}.out", lab.environment())


def _satellite(job: StandIn) -> tuple[int, str]:
    """Slurm job id and node of its only one."""
    ((satellite, node),) = job.satellites().items()
    return satellite, node


def _events(job: StandIn) -> str:
    return job.lab.run(["flexo", "events", str(job.job_id)]).stdout


def _grows_on(job: StandIn, node: str) -> None:
    wait(lambda: list(job.satellites().values()) == [node], f"a satellite on {node}")
    job.wait_for_workers(2)


def test_satellites_leave_a_node_that_is_drained_or_to_be_rebooted_and_come_back_to_it(job: StandIn) -> None:
    lab, (satellite, node) = job.lab, _satellite(job)
    _update(lab, node, "DRAIN")
    wait(lambda: satellite not in job.satellites(), "the satellite leaves")
    assert state(lab, satellite) in ("COMPLETING", "COMPLETED"), "it ended by itself"
    assert f"{node} is wanted empty (drained)" in _events(job)
    wait(lambda: len(job.satellites()) == 1, "the job grows elsewhere")
    _, other = _satellite(job)
    assert other != node
    job.wait_for_workers(2)

    # with nowhere else to go, it waits for the node that comes back
    _update(lab, node, "RESUME")
    blocker = ["--wrap=sleep 600", "--parsable", "--gres=gpu:1", f"--nodelist={node}"]
    blocking = lab.run(["sbatch", "--output=/dev/null", *blocker]).stdout.strip()
    wait(lambda: state(lab, int(blocking)) == "RUNNING", "another job has the first node")
    lab.run(["scontrol", "reboot", "nextstate=RESUME", other])
    wait(lambda: not job.satellites(), "the satellite leaves")
    assert re.search(rf"\b{other} .*\brebooted\b", _events(job))
    wait(lambda: "REBOOT_ISSUED" in _flags(lab, other), "Slurm reboots the empty node")
    _kill_slurmd(lab, other)
    job.wait_for_workers(1)
    assert not job.satellites()
    _boot(lab, other)
    _grows_on(job, other)
    job.finish()


def test_a_node_that_is_lost_takes_its_workers_along_and_the_job_trains_on(job: StandIn) -> None:
    lab, (satellite, node) = job.lab, _satellite(job)
    _update(lab, node, "DOWN")
    wait(lambda: state(lab, satellite) == "NODE_FAIL", "Slurm ends what was there")
    job.wait_for_workers(1)
    wait(lambda: f"on {node}: preempted: Slurm takes the node back" in _events(job), "flexod is told")
    wait(lambda: len(job.satellites()) == 1, "the job grows elsewhere")
    job.wait_for_workers(2)
    second, other = _satellite(job)
    assert other != node

    # Slurm itself does not notice for SlurmdTimeout: it is the job that gives the satellite up
    _power_off(lab, other, second)
    job.wait_for_workers(1)
    wait(lambda: f"on {other}: lost: its agent is gone" in _events(job), "flexod is told")
    wait(lambda: second not in job.satellites(), "the satellite is given up")
    _boot(lab, other)
    wait(lambda: _flags(lab, other) == {"IDLE"}, "the node is usable again")
    job.finish()


@pytest.mark.thorough
def test_a_base_stays_on_a_drained_node_and_leaves_no_satellite_when_its_node_is_lost(job: StandIn) -> None:
    lab = job.lab
    satellites, base = job.satellites(), field(lab, job.job_id, "NodeList")
    _update(lab, base, "DRAIN")
    wait(lambda: "DRAIN" in _flags(lab, base), "it is drained")
    before = len(job.events("batch"))
    wait(lambda: len(job.events("batch")) > before + 100, "the job trains on")
    assert job.satellites() == satellites
    assert len(job.working()) == 2

    _update(lab, base, "DOWN")
    wait(lambda: field(lab, job.job_id, "Restarts") == "1", "Slurm requeues the base")
    wait(lambda: not job.satellites(), "its satellite ends")
    _update(lab, base, "RESUME")
