"""What the observer makes of Slurm's words."""

from __future__ import annotations

import pytest
from chaos.system.looks import Held, Tag, from_lines, latest, parse, to_line

pytestmark = pytest.mark.thorough

JOBS = """\
JobId=4 JobName=rigid1
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 ExitCode=0:0
   Partition=train AllocNode:Sid=host:1
   NodeList=t[1-2]
     Nodes=t[1-2] CPU_IDs=0 Mem=4000 GRES=gpu:2(IDX:0-1)
     Nodes=t3 CPU_IDs=0 Mem=4000 GRES=gpu:v100:1(IDX:1)

JobId=5 JobName=flexo-4
   JobState=COMPLETED Reason=None Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   Partition=flex AllocNode:Sid=host:1
   Comment=flexo-satellite base=4 restart=1 grant=g17 workers=2
"""
PARTITIONS = """\
PartitionName=infer AllowGroups=ALL Nodes=i[1-3] State=UP
PartitionName=borrowed AllowGroups=ALL Nodes=i[1-2] State=UP
PartitionName=borrowed-flex AllowGroups=ALL Nodes=i2 State=UP
"""
EMPTY = "PartitionName=borrowed AllowGroups=ALL Nodes=(null) State=UP\n"


def test_a_look_has_each_jobs_gpus_by_number_and_what_satellites_say() -> None:
    look = parse(12.5, JOBS, PARTITIONS)
    rigid, satellite = look.jobs
    assert rigid.held == (Held("t1", (0, 1)), Held("t2", (0, 1)), Held("t3", (1,)))
    assert (rigid.runs, rigid.over, rigid.restarts, rigid.tag) == (True, False, 1, None)
    assert (satellite.runs, satellite.over, satellite.held) == (False, True, ())
    assert satellite.tag == Tag(4, 1, "g17")
    assert look.borrowed == {"i1", "i2"}
    assert parse(1.0, "No jobs in the system\n", EMPTY).borrowed == frozenset()


def test_looks_are_read_back_from_lines_without_blind_and_torn_ones() -> None:
    look = parse(12.5, JOBS, PARTITIONS)
    text = to_line(look) + '{"at": 13.0, "blind": "no answer"}\n' + to_line(look)[:40]
    assert from_lines(text) == (look,)
    assert latest(text) == look
    assert latest('{"at": 13.0, "blind": "no answer"}\n') is None
