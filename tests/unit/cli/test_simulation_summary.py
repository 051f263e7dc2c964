"""The sentences on what was simulated."""

from __future__ import annotations

import pytest

from flexo.clusters.simulated.nodes import NodeGroup
from flexo_cli.site.simulation import summary


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((NodeGroup(1, 1),), "1 node of 1 GPU"),
        ((NodeGroup(2, 8),), "2 nodes of 8 GPUs"),
        ((NodeGroup(2, 4, "v100"), NodeGroup(1, 1, "t4")), "2 nodes of 4 v100, 1 node of 1 t4"),
    ],
)
def test_nodes_and_gpus_are_counted(groups: tuple[NodeGroup, ...], words: str) -> None:
    assert summary.cluster(groups) == words
