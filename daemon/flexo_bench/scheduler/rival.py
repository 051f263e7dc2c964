"""Times Pollux' own simulator in the same run as ours, if its checkout is at hand.

The simulator is petuum/adaptdl, branch osdi21-artifact, folder simulator. It runs as it is, outside this
repository.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from pathlib import Path


class NoArtifact(Exception):
    """Pollux' simulator is missing, or did not run; the message says why."""


def cpu_s(artifact: Path, python: str, policy: str, workload: Path) -> float:
    """CPU seconds of Pollux' simulation of `workload` under `policy`, with its start. Raises NoArtifact."""
    folder = artifact / "simulator"
    script = folder / "simulator.py"
    if not script.is_file():
        raise NoArtifact(f"there is no {script}")
    before = _children_s()
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        command = [python, str(script), str(workload), "--policy", policy, "--output", output.name]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(artifact / "adaptdl")])}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise NoArtifact(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return _children_s() - before


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
