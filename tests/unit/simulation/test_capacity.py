"""Which jobs an empty cluster holds."""

from __future__ import annotations

import pytest
from little_simulations import trace_job

from flexo.clusters.simulated.nodes import NodeGroup, make_nodes
from flexo_protos.resources import Resources
from flexo_simulation.capacity import Capacity

MIXED = Capacity(make_nodes((NodeGroup(2, 4, "v100", "v"), NodeGroup(1, 6, "t4", "t"))))


@pytest.mark.parametrize(
    ("workers", "gpus", "gpu_type", "changes", "holds"),
    [
        ("8-20", 1, "", {}, True),
        ("9-20", 1, "", {}, False),
        ("9-20", 1, "", {"heterogeneous": True}, True),
        ("15-20", 1, "", {"heterogeneous": True}, False),
        ("7-7", 1, "t4", {}, False),
        ("7-7", 1, "t4", {"fungible": True}, True),
        ("3-3", 3, "", {}, False),
        ("2-2", 3, "", {}, True),
        ("1-1", 1, "a100", {}, False),
        ("1000-1000", 0, "", {}, True),
    ],
)
def test_a_job_fits_if_its_fewest_workers_do_on_nodes_that_it_may_use(
    workers, gpus, gpu_type, changes, holds
):
    shape = Resources(gpus, 1, gpu_type=gpu_type)
    assert MIXED.holds(trace_job(1, workers=workers, shape=shape, **changes)) is holds
