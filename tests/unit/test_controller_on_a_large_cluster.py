"""The controller on a cluster of thousands of nodes: a guard against cycles that become slow again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from controller_world import STEP_S, World

NODES, GPUS = 5000, 8
ELASTIC, WAITING = 1000, 17000
IDLE_NODES = 150
BOUND_S = 5.0
"""CPU time, ten times what a cycle takes."""


def _large_world(directory: Path) -> World:
    """Elastic jobs on two GPUs each, jobs that fill nearly all other nodes, jobs that wait for many."""
    world = World(directory)
    names = [f"n{number}" for number in range(1, NODES + 1)]
    world.cluster.sizes = dict.fromkeys(names, GPUS)
    world.cluster.last_id = 100_000
    for number in range(ELASTIC):
        world.job(number + 1, "2-16", names[number // (GPUS // 2)])
    hosts = ELASTIC * 2 // GPUS
    for number, name in enumerate(names[hosts:-IDLE_NODES]):
        world.rigid(10_000 + number, GPUS, name)
    for number in range(WAITING):
        world.rigid(20_000 + number, NODES // 4 * GPUS, num_nodes=NODES // 4, gpus_per_node=GPUS)
    return world


@pytest.mark.thorough
def test_a_cycle_with_thousands_of_nodes_and_jobs_takes_seconds_at_most(tmp_path: Path) -> None:
    world = _large_world(tmp_path)
    took = []
    for _ in range(2):  # the second with grants, whose satellites have started by then
        began = time.process_time()
        world.controller.cycle()
        took.append(time.process_time() - began)
        world.cluster.pass_time(STEP_S)
    assert len(world.cluster.satellites()) > ELASTIC, "the jobs have grown: there was something to plan"
    assert max(took) < BOUND_S
