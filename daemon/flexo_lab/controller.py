"""slurmctld of a lab: start it, and check that it answers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from flexo_lab.layout import Layout
from flexo_lab.processes import start_daemonizing, wait_until
from flexo_lab.requirements import program

_ANSWERS_WITHIN_S = 30.0


def start_slurmctld(layout: Layout, environment: Mapping[str, str]) -> None:
    """Start slurmctld with its saved state, and wait until it answers. Raises LabFailed."""
    command = [program("slurmctld"), "-i", "-f", str(layout.slurm_conf)]
    start_daemonizing(command, layout.logs / "slurmctld.out", environment)
    log = layout.logs / "slurmctld.log"
    wait_until(lambda: bool(node_states(environment)), "slurmctld to answer", _ANSWERS_WITHIN_S, log)


def node_states(environment: Mapping[str, str]) -> list[str]:
    """State of each node in each of its partitions; empty while slurmctld does not answer."""
    try:
        asked = subprocess.run(
            [program("sinfo"), "--noheader", "--Node", "--format=%T"],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=10,
        )
    except subprocess.TimeoutExpired:
        return []
    return asked.stdout.split() if asked.returncode == 0 else []
