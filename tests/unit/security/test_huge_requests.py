"""Users may ask for any number of anything: whatever stands in their jobs, flexod goes its round at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from controller_world import BOB, World, slurm_job

from flexo.model.queue import ElasticRequest, JobState
from flexo.model.ranges import Range
from flexo.policies import registry
from flexo_protos.resources import Resources

ANY = Range(1, 999_999_999)
"""The largest that the plugin lets through where the site sets no limit."""
MOST_BYTES = 64 << 20


def elastic(world: World) -> None:
    world.job(1, str(ANY), elastic=ElasticRequest(ANY, fungible=True, batch=ANY))


def elastic_that_wait(world: World) -> None:
    for job_id in range(2, 6):
        request = ElasticRequest(ANY, fungible=True, batch=ANY)
        waiting = {"state": JobState.PENDING, "reason": "Resources", "gpus_per_node": 1}
        world.cluster.add(slurm_job(job_id, BOB, elastic=request, **waiting))


def large_workers(world: World) -> None:
    world.job(1, "1-4").shape = Resources(1024, 65_536, 1 << 30)


def large_jobs(world: World) -> None:
    for job_id, nodes in ((2, 1), (3, 2**31 - 1)):
        world.cluster.add(
            slurm_job(
                job_id,
                BOB,
                state=JobState.PENDING,
                reason="Resources",
                num_nodes=nodes,
                gpus=2**40,
                cpus=2**40,
                gpus_per_node=2**32,
                memory_mib=2**50,
                time_limit_s=2**40,
            )
        )


@pytest.mark.parametrize("asks", [elastic, elastic_that_wait, large_workers, large_jobs])
@pytest.mark.parametrize("policy", registry.names())
def test_no_number_in_a_job_makes_a_cycle_long(
    policy: str, asks: Callable[[World], None], tmp_path: Path
) -> None:
    world = World(tmp_path, policy=policy)
    asks(world)
    tracemalloc.start()
    try:
        for _ in range(3):
            world.controller.turn()
            world.cluster.now += 60
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
