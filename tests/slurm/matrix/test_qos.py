"""slurmdbd on a real MariaDB: satellites preempted by QOS, held by limits, and billed as the site likes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo_lab import Lab, Profile
from flexo_lab.accounting import USAGE_FACTOR, USERS
from matrix.stand_in import USER, StandIn, field, state, submit, wait

pytestmark = pytest.mark.timeout(600)
OTHER = next(user for user in USERS if user != USER)


@pytest.fixture(scope="module")
def qos_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """Two nodes with two GPUs each; jobs of QOS normal preempt those of QOS flex."""
    lab = make_lab(nodes=2, gpus_per_node=2, infer_nodes=0, profile=Profile.ACCOUNTING, by_qos=True)
    yield lab
    lab.down()


@pytest.fixture
def quiet_lab(qos_lab: Lab) -> Iterator[Lab]:
    """That lab, with flexod (which remembers no failures), without jobs and limits."""
    qos_lab.start_flexod()
    yield qos_lab
    cancel_all_jobs(qos_lab)
    limit(qos_lab, "qos", "flex", "MaxTRESPerUser=gres/gpu=-1", "MaxTRESPerAccount=gres/gpu=-1")
    limit(qos_lab, "user", USER, "GrpTRES=gres/gpu=-1", "MaxJobs=-1")


def limit(lab: Lab, kind: str, name: str, *limits: str) -> None:
    """Set limits of a QOS or of a user's associations; slurmctld hears of them at once."""
    lab.run(["sacctmgr", "--immediate", "--quiet", "modify", kind, name, "set", *limits])


def qos_of(lab: Lab, job_id: int) -> str:
    return field(lab, job_id, "QOS")


def failures(lab: Lab, job: StandIn) -> list[str]:
    """What flexod's event store says of grants of the job that came to nothing."""
    asked = lab.run(["flexo", "why", str(job.job_id), "--json"], check=False)
    told = json.loads(asked.stdout) if asked.returncode == 0 else {"events": []}  # not seen yet
    return [event["text"] for event in told["events"] if event["kind"] == "failure"]


def expect_no_error(lab: Lab, job: StandIn) -> None:
    """The base trains on, flexod is in order, nobody speaks of an error."""
    job.wait_for_workers(1)
    assert state(lab, job.job_id) == "RUNNING"
    assert json.loads(lab.run(["flexo", "status", "--json"]).stdout)["trouble"] == ""
    assert "Traceback" not in job.output()
    assert "Traceback" not in (lab.layout.logs / "flexod.log").read_text()


def test_a_job_of_a_qos_that_may_takes_the_node_of_a_satellite_by_slurm_alone(quiet_lab: Lab) -> None:
    job = StandIn.submitted(quiet_lab, "1-4")
    job.wait_for_workers(4)
    assert {qos_of(quiet_lab, satellite) for satellite in job.satellites()} == {"flex"}
    assert qos_of(quiet_lab, job.job_id) == "normal"
    other = next(node for node in ("t1", "t2") if node != field(quiet_lab, job.job_id, "NodeList"))
    (taken,) = (satellite for satellite, node in job.satellites().items() if node == other)
    quiet_lab.stop_flexod(kill=True)
    ordinary = submit(quiet_lab, f"--nodelist={other}", "--gres=gpu:2")
    wait(lambda: state(quiet_lab, ordinary) == "RUNNING", "the ordinary job has its node")
    assert qos_of(quiet_lab, ordinary) == "normal"
    assert field(quiet_lab, taken, "PreemptTime") not in ("", "None")
    job.wait_for_workers(2)
    job.finish()


def test_in_the_satellites_partition_nobody_takes_their_nodes(quiet_lab: Lab) -> None:
    job = StandIn.submitted(quiet_lab, "1-4")
    job.wait_for_workers(4)
    same = submit(quiet_lab, "--qos=flex", "--partition=flex", "--nodelist=t1,t2", "-N2", "--gres=gpu:2")
    other = submit(quiet_lab, "--qos=normal", "--partition=flex", "--gres=gpu:2")
    time.sleep(10)  # five cycles of Slurm's main scheduler
    assert state(quiet_lab, same) == state(quiet_lab, other) == "PENDING"
    quiet_lab.run(["scancel", str(same), str(other)])
    job.wait_for_workers(4)
    job.finish()


@pytest.mark.parametrize(
    ("kind", "name", "limits", "reason"),
    [
        ("qos", "flex", "MaxTRESPerUser=gres/gpu=0", "QOSMaxGRESPerUser"),
        ("qos", "flex", "MaxTRESPerAccount=gres/gpu=0", "MaxGRESPerAccount"),
        ("user", USER, "GrpTRES=gres/gpu=1", "AssocGrpGRES"),
        ("user", USER, "MaxJobs=1", "AssocMaxJobsLimit"),
    ],
)
def test_a_satellite_that_a_limit_holds_is_no_grant_and_no_error(
    quiet_lab: Lab, kind: str, name: str, limits: str, reason: str
) -> None:
    limit(quiet_lab, kind, name, limits)
    job = StandIn.submitted(quiet_lab, "1-4")
    wait(lambda: failures(quiet_lab, job), "a grant comes back")
    assert f"refused: {reason}" in failures(quiet_lab, job)[0]
    expect_no_error(quiet_lab, job)
    wait(lambda: not quiet_lab.run(["squeue", "--noheader", "--partition=flex"]).stdout, "no satellite stays")
    tried = len(failures(quiet_lab, job))
    time.sleep(15)
    assert len(failures(quiet_lab, job)) == tried, "it is left alone for a while"
    job.finish()


def test_a_satellite_that_slurm_does_not_even_take_is_no_error_either(quiet_lab: Lab) -> None:
    limit(quiet_lab, "qos", "flex", "MaxSubmitJobsPerUser=0")
    try:
        job = StandIn.submitted(quiet_lab, "1-4")
        wait(lambda: failures(quiet_lab, job), "a grant comes back")
        assert "refused: sbatch: " in failures(quiet_lab, job)[0]
        expect_no_error(quiet_lab, job)
        job.finish()
    finally:
        limit(quiet_lab, "qos", "flex", "MaxSubmitJobsPerUser=-1")


def raw_usage(lab: Lab, user: str) -> int:
    """What Slurm has booked on the user's account, in seconds of what is billed."""
    asked = ["sshare", f"--users={user}", "--parsable2", "--noheader", "--format=User,RawUsage"]
    rows = [line.split("|") for line in lab.run(asked).stdout.split()]
    return sum(int(usage) for name, usage in rows if name == user)


def test_an_hour_of_a_satellites_qos_is_billed_as_the_qos_says(quiet_lab: Lab) -> None:
    before = {user: raw_usage(quiet_lab, user) for user in (USER, OTHER)}
    sleep = ["sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:1", "--wrap=sleep 40"]
    flexible = int(quiet_lab.run([*sleep, "--partition=flex", "--qos=flex"], user=USER).stdout)
    ordinary = int(quiet_lab.run(sleep, user=OTHER).stdout)
    for job_id in (flexible, ordinary):
        wait(lambda job_id=job_id: state(quiet_lab, job_id) == "COMPLETED", "it ends")

    def booked(user: str) -> int:
        return raw_usage(quiet_lab, user) - before[user]

    wait(lambda: booked(OTHER) >= 35 and booked(USER) > 0, "Slurm has booked them", 180)
    wait(lambda: booked(USER) >= USAGE_FACTOR * 35, "Slurm has booked both to their ends", 180)
    assert booked(USER) <= 2 * USAGE_FACTOR * booked(OTHER)
