"""Jobs' comments are the site's and the users': nothing that flexod has Slurm do writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flexo.clusters.base import (
    Borrowed,
    Cluster,
    KnowsEnds,
    Lends,
    Prioritizes,
    Priority,
    Requeues,
    SharesByUser,
    Site,
)
from flexo.clusters.slurm.adapter import SlurmCluster
from flexo.clusters.slurm.marks import elastic_request
from flexo.model.queue import ElasticRequest
from flexo.model.ranges import Range

INTERFACES = (Cluster, KnowsEnds, Lends, Prioritizes, Requeues, SharesByUser)
READING = {"software", "traits", "observe", "user_shares", "ends", "in_band", "arrange"}


@pytest.mark.processes
def test_flexod_changes_three_things_in_slurm_and_no_comment_is_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    for name in ("scontrol", "scancel"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {said}\ncat >> {said}\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    cluster = SlurmCluster(site=Site(Borrowed("borrowed")))
    acts = {
        "extend": lambda: cluster.extend(["7"], 300),
        "cancel": lambda: cluster.cancel("7"),
        "requeue": lambda: cluster.requeue("7"),
        "lend": lambda: cluster.lend(frozenset({"i1", "i2"})),
        "prioritize": lambda: cluster.prioritize([Priority("7", 4294910000), Priority("8", 4294910001)]),
    }
    assert all(isinstance(cluster, interface) for interface in INTERFACES[1:])
    methods = {name for interface in INTERFACES for name in vars(interface) if not name.startswith("_")}
    assert methods == acts.keys() | READING
    for act in acts.values():
        act()
    assert set(re.findall(r"(\w+)=", said.read_text())) == {
        "JobId",
        "EndTime",
        "PartitionName",
        "Nodes",
        "Priority",
    }
    assert "comment" not in said.read_text().lower()


@pytest.mark.parametrize(
    "comment",
    [
        "flexo{workers=2-8}",
        "project=42 flexo{workers=2-8}",
        "flexo{workers=2-8} ticket 17: {urgent} 50%",
        "a=b;c flexo{workers=2-8} {x=y}",
    ],
)
def test_what_a_site_keeps_around_it_is_no_part_of_the_request(comment: str) -> None:
    assert elastic_request(comment) == ElasticRequest(Range(2, 8))
