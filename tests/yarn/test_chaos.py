"""Parts of YARN, of flexo and of a job are killed or stopped at random: no base is preempted, nothing lost.

A seed is a job under which each of six parts fails once. Nine seeds are 54 rounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from applications import end_all, require_yarn
from yarn_chaos import Watcher, play, rounds, trace_of
from yarn_jobs import submit

from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn, wait_for_nodes

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]
SEEDS = range(1, 10)
MOST_LOST = 4
"""Batches that may be repeated after a crash of a worker: those that the others had not committed."""


@pytest.fixture(scope="module")
def chaotic() -> Iterator[YarnLab]:
    """Three nodes with four GPUs each, and flexod."""
    require_yarn()
    lab = bring_up_yarn(YarnLabSpec(name=f"chaos-{os.getpid()}", nodes=3))
    yield lab
    lab.down()


@pytest.mark.parametrize("seed", SEEDS)
def test_six_parts_fail_one_after_another_and_the_job_ends_well(
    chaotic: YarnLab, tmp_path: Path, seed: int
) -> None:
    end_all(chaotic)
    chaotic.start_flexod()
    trace = ("--export", f"FLEXO_TRACE={trace_of(tmp_path)}")
    options = ("--gpus", "1", "--memory", "1G", *trace)
    job = submit(chaotic, tmp_path, "counting.py", elastic="3-9", options=options)
    job.wait_for_size(9)
    with Watcher(chaotic, job) as watcher:
        for each in rounds(seed):
            waited = play(chaotic, job, each)
            print(f"seed {seed}: {each}: {waited:.1f} s of waiting, {job.sizes()[-1]} workers")
            wait_for_nodes(chaotic)
    assert watcher.findings == []
    job.stop()
    job.check_finished()
    job.check_steps(lost=MOST_LOST)
    for event in job.events("done"):
        assert event["total"] == sum(range(event["steps"])), event
