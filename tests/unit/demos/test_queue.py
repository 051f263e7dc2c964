"""Jobs as `scontrol -d show job` of Slurm 22.05 prints them."""

from __future__ import annotations

import pytest

from flexo_demos.elastic.queue import Look, QueuedJob, holdings, node_map, room_for
from flexo_demos.elastic.slurm import parse_jobs

pytestmark = pytest.mark.thorough

TAG = "flexo-satellite base=1 restart=0 grant=g7 workers=2"
NODES = ("t1", "t2", "t3")


def shown(job_id: int, state: str, allocation: str = "", comment: str = "") -> str:
    """What Slurm shows, less the lines that nobody reads here."""
    return f"""JobId={job_id} JobName=train.sbatch
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState={state} Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=t1
   JOB_GRES=gpu:1
{allocation}   MinCPUsNode=1 MinMemoryCPU=4000M MinTmpDiskNode=0
   AdminComment=flexo{{workers=1-4}}
{f"   Comment={comment} " if comment else ""}
   Power=
   TresPerTask=gres:gpu:1
   """


def allocated(nodes: str, gres: str) -> str:
    return f"     Nodes={nodes} CPU_IDs=0 Mem=4000 GRES={gres}\n"


def test_jobs_are_read_with_the_gpus_that_they_hold_on_each_node() -> None:
    text = "\n\n".join(
        [
            shown(1, "RUNNING", allocated("t1", "gpu:1(IDX:0)")),
            shown(2, "RUNNING", allocated("t[2-3]", "gpu:3(IDX:0-2)"), TAG),
            shown(3, "PENDING"),
        ]
    )
    assert parse_jobs(text) == (
        QueuedJob(1, "RUNNING", "None", (("t1", 1),), satellite=False),
        QueuedJob(2, "RUNNING", "None", (("t2", 3), ("t3", 3)), satellite=True),
        QueuedJob(3, "PENDING", "None", (), satellite=False),
    )


def test_a_job_on_unlike_nodes_holds_the_sum() -> None:
    lines = allocated("t1", "gpu:2(IDX:0-1)") + allocated("t[2-3]", "gpu:v100:1(IDX:0)")
    assert parse_jobs(shown(1, "RUNNING", lines))[0].gpus_held == 4


def test_other_devices_are_no_gpus() -> None:
    lines = allocated("t1", "nic:2(IDX:0-1)") + allocated(
        "t2", "nic:1(IDX:0),gpu:a:2(IDX:0-1),gpu:b:1(IDX:2)"
    )
    assert parse_jobs(shown(1, "RUNNING", lines))[0].gpus == (("t2", 3),)


def test_a_job_that_is_completing_still_holds_its_gpus_and_one_that_ended_does_not() -> None:
    lines = allocated("t1", "gpu:1(IDX:0)")
    assert parse_jobs(shown(1, "COMPLETING", lines))[0].gpus_held == 1
    assert parse_jobs(shown(1, "COMPLETED", lines))[0].gpus_held == 0


@pytest.mark.parametrize("comment", ["my flexo-satellite", "flexo-satellite", f"{TAG} more"])
def test_a_comment_that_only_looks_like_a_satellites_tag_is_none(comment: str) -> None:
    assert not parse_jobs(shown(1, "RUNNING", comment=comment))[0].satellite


def test_an_empty_queue_has_no_jobs() -> None:
    assert parse_jobs("No jobs in the system\n") == ()


def test_a_job_without_a_state_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match="without JobState: JobId=9"):
        parse_jobs("JobId=9 JobName=x\n")


@pytest.mark.parametrize(
    ("state", "runs", "over"),
    [
        ("PENDING", False, False),
        ("CONFIGURING", False, False),
        ("RUNNING", True, False),
        ("COMPLETING", False, False),
        ("COMPLETED", False, True),
        ("PREEMPTED", False, True),
        ("CANCELLED", False, True),
        ("NODE_FAIL", False, True),
    ],
)
def test_states(state: str, runs: bool, over: bool) -> None:
    job = QueuedJob(1, state, "None", (), satellite=False)
    assert (job.runs, job.over) == (runs, over)


def make_look(at: float, *jobs: QueuedJob) -> Look:
    return Look(at, jobs)


BASE = QueuedJob(1, "RUNNING", "None", (("t1", 1),), satellite=False)
SATELLITE = QueuedJob(2, "RUNNING", "None", (("t2", 3),), satellite=True)
RIGID = QueuedJob(3, "RUNNING", "None", (("t2", 3), ("t3", 3)), satellite=False)
ENDED = QueuedJob(2, "COMPLETED", "None", (), satellite=True)


def test_holdings_follow_each_job_over_time() -> None:
    looks = [make_look(1.0, BASE), make_look(2.0, BASE, SATELLITE), make_look(3.0, BASE, ENDED, RIGID)]
    held = holdings(looks, base_id=1, rigid_id=3)
    assert (held.at, held.base) == ((1.0, 2.0, 3.0), (1, 1, 1))
    assert (held.satellites, held.rigid) == ((0, 3, 0), (0, 0, 6))


def test_satellites_that_ended_are_not_left_over() -> None:
    assert make_look(1.0, BASE, SATELLITE).satellites == (SATELLITE,)
    assert make_look(1.0, BASE, ENDED).satellites == ()


def test_room_is_counted_in_nodes_with_enough_idle_gpus() -> None:
    look = make_look(1.0, BASE, SATELLITE)
    assert room_for(look, NODES, gpus_per_node=3, needed=3) == 1
    assert room_for(look, NODES, gpus_per_node=3, needed=2) == 2


def test_the_map_has_a_letter_for_each_gpu() -> None:
    look = make_look(1.0, BASE, QueuedJob(2, "RUNNING", "None", (("t1", 1), ("t2", 2)), satellite=True))
    assert node_map(look, NODES, 3, {1: "E"}) == "t1 Ee·  t2 ee·  t3 ···"
