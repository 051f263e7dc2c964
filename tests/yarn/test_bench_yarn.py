"""make bench-yarn, as small as it can be: every part runs on real clusters and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import applications
import pytest

from flexo_lab.lab import all_labs

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

NODES, GRANTS = 20, 2
SMALL = ("--grants", str(GRANTS), "--seconds", "3", "--nodes", str(NODES), "--scheduling", "heartbeats")
SHORT = ("--polls", "3", "--rounds", "1", "--warm-up", "3")


def test_a_small_run_has_every_part_beside_its_rival_and_leaves_nothing(tmp_path: Path) -> None:
    applications.require_yarn()
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "flexo_bench.yarn", *SMALL, *SHORT, "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        printed, _ = run.communicate(timeout=800)
    assert run.returncode == 0, printed
    found = json.loads(path.read_text())
    assert f"--nodes {NODES}" in found["command"]

    for each in found["grants"]["flexo"]:
        assert 0 < each["running_s"] < each["training_s"]
    assert len(found["grants"]["flexo"]) == len(found["grants"]["yarn"]) == GRANTS

    for place in ("yarn", "slurm"):
        costs = {each["role"]: each for each in found["process"][place]}
        assert costs["master"]["processes"] == 1
        assert costs["worker"]["processes"] == found["process"]["workers"]
        assert 5 < costs["master"]["pss_mib"] < costs["master"]["rss_mib"]

    (polled,) = found["polling"]
    workload = polled["workload"]
    bases, satellites = workload["elastic"], 4 * workload["elastic"]
    assert polled["jobs"] == workload["ordinary"] + workload["waiting"] * 2 + bases + satellites
    assert polled["containers"] == NODES * 8
    assert {"nodes", "queues", "applications", "containers", "demand"} == set(polled["polls"][0]["calls"])
    (without,), (beside,) = polled["without"], polled["beside"]
    assert beside["polls_s"]
    assert not without["polls_s"]
    assert beside["rm"]["rest"] > without["rm"]["rest"]
    assert beside["node_beats"] >= NODES * 2

    assert set(found["goals"]) == {
        "grant_p95_s",
        "master_more_rss_mib",
        "master_cpu",
        f"poll_p95_s_{NODES}_nodes_heartbeats",
        f"rm_part_{NODES}_nodes_heartbeats",
    }
    assert not [name for name in all_labs() if name.endswith(str(run.pid))]
