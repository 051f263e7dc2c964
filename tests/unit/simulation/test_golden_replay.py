"""The published results of Tiresias on Pollux' workloads, to the second: what all other results rest on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traces import needs_traces
from typer.testing import CliRunner

from flexo_cli.app import application

PUBLISHED_MEAN_JCT_S = {1: 2473.65, 2: 5144.96, 3: 3876.26, 4: 3280.26, 6: 3469.69}
"""Qiao et al., "Pollux" (OSDI 2021): row "Tiresias" of the artifact's results, by workload."""


@pytest.mark.parametrize("number", PUBLISHED_MEAN_JCT_S)
def test_tiresias_on_pollux_workloads_is_replayed_to_the_second(number: int, tmp_path: Path):
    trace = needs_traces(f"pollux/workloads/workload-{number}.csv")
    written = tmp_path / "result.json"
    arguments = ["--trace", trace, "--format", "pollux", "--policy", "tiresias-pollux"]
    cluster = ["--nodes", 16, "--gpus-per-node", 4]
    command = ["simulate", *arguments, *cluster, "--json", written]
    done = CliRunner().invoke(application(), [str(word) for word in command])
    assert done.exit_code == 0, done.output
    result = json.loads(written.read_text())
    assert result["jobs"] == 160
    assert result["finished"] == 160
    assert not result["oracle"]
    assert result["avg_jct_s"] == pytest.approx(PUBLISHED_MEAN_JCT_S[number], rel=1e-4)
