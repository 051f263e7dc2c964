"""Leases with slurmdbd: flexod, an Operator, keeps satellites alive; without it they run out gracefully."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flexo_lab import Lab, Profile

TIME_LIMIT_S = 60
SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
USER = "games"
ELASTIC = f"""#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --elastic=1-3
exec flexo run python {shlex.quote(str(SCRIPT))} --step-seconds 0.2 --epochs 100000
"""


def _field(lab: Lab, job_id: int, name: str) -> str:
    text = lab.run(["scontrol", "show", "job", str(job_id), "--oneliner"]).stdout
    match = re.search(rf"\b{name}=(\S+)", text)
    return match[1] if match else ""


def _satellite(lab: Lab) -> int | None:
    ids = lab.run(["squeue", "--noheader", "--partition=flex", "--states=RUNNING", "--format=%i"]).stdout
    return int(ids.split()[0]) if ids.split() else None


def _wait(what: Callable[[], object], seconds: float, sentence: str) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {seconds:.0f} s"
        time.sleep(1)


def _batches(lab: Lab, job_id: int) -> list[int]:
    text = (lab.scratch / f"{job_id}.out").read_text()
    return [int(count) for count in re.findall(r"1 worker on 1 node after (\d+) batch", text)]


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(600)
def test_an_operator_extends_leases_and_without_flexod_they_end_gracefully(
    spared_lab: Callable[..., Lab],
) -> None:
    lab = spared_lab(profile=Profile.ACCOUNTING)
    toml = lab.layout.flexo_toml
    toml.write_text(toml.read_text().replace("[controller]", f"[controller]\nlease_s = {TIME_LIMIT_S}"))
    lab.restart_flexod()
    submitted = lab.run(["sbatch", "--parsable", "--output=%j.out"], stdin=ELASTIC, user=USER).stdout
    base = int(submitted.split(";")[0])
    _wait(lambda: _satellite(lab), 120, "a satellite runs")
    satellite = _satellite(lab)
    assert satellite is not None
    assert _field(lab, satellite, "TimeLimit") == "00:01:00"

    _wait(lambda: _field(lab, satellite, "TimeLimit") != "00:01:00", TIME_LIMIT_S, "the lease is extended")
    lab.stop_flexod(kill=True)
    _wait(
        lambda: _field(lab, satellite, "JobState") not in ("RUNNING", "COMPLETING"),
        4 * TIME_LIMIT_S,
        "it ends",
    )

    assert _field(lab, base, "JobState") == "RUNNING"
    _wait(lambda: len(_batches(lab, base)) == 2, 120, "the base trains on alone")
    output = (lab.scratch / f"{base}.out").read_text()
    assert "HorovodInternalError" not in output, "its workers left at a commit, nobody was cut off"
    assert output.count("no flexod at") == 1
