"""On default scheduler settings, with a big job blocked for good: growing without being in the way."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flexo_lab import Lab, Profile

BACKFILL_CYCLE_S = 30  # Slurm's default bf_interval, which the production profile leaves alone
WATCH_S = 100
SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
ELASTIC = f"""#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --time=60
#SBATCH --elastic=1-4
exec flexo run python {shlex.quote(str(SCRIPT))} --step-seconds 0.2 --epochs 100000
"""


def _submit(lab: Lab, *options: str, script: str | None = None) -> int:
    command = ["sbatch", "--parsable", "--output=%j.out", *options]
    return int(lab.run(command, stdin=script).stdout.split(";")[0])


def _show(lab: Lab, job_id: int) -> dict[str, str]:
    text = lab.run(["scontrol", "show", "job", str(job_id), "--oneliner"]).stdout
    return dict(re.findall(r"(\S+?)=(\S*)", text))


def _satellites(lab: Lab) -> list[int]:
    lines = lab.run(["squeue", "--noheader", "--partition=flex", "--format=%i", "--states=all"]).stdout
    return [int(line) for line in lines.split()]


def _when(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def _wait(what: Callable[[], bool], seconds: float, sentence: str) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {seconds:.0f} s"
        time.sleep(1)


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(600)
def test_an_elastic_job_grows_beside_a_blocked_job_and_does_not_delay_it(
    spared_lab: Callable[..., Lab],
) -> None:
    lab = spared_lab(profile=Profile.PRODUCTION)
    holder = _submit(lab, "-w", "t1", "--gres=gpu:4", "--time=120", "--wrap", "sleep 7200")
    _wait(lambda: _show(lab, holder)["JobState"] == "RUNNING", 60, "the holder starts")
    blocked = _submit(lab, "-N", "3", "--gres=gpu:4", "--time=60", "--wrap", "sleep 60")
    base = _submit(lab, script=ELASTIC)
    _wait(lambda: _show(lab, base)["JobState"] == "RUNNING", 4 * BACKFILL_CYCLE_S, "the base is backfilled")
    _wait(lambda: _show(lab, blocked)["StartTime"] != "Unknown", 3 * BACKFILL_CYCLE_S, "a start is planned")
    planned_without = _when(_show(lab, blocked)["StartTime"])

    _wait(lambda: bool(_satellites(lab)), 90, "a satellite is submitted")
    first = _satellites(lab)[0]
    submitted = _when(_show(lab, first)["SubmitTime"])
    _wait(lambda: _show(lab, first)["JobState"] == "RUNNING", 3 * BACKFILL_CYCLE_S, "the satellite starts")
    waited = _when(_show(lab, first)["StartTime"]) - submitted
    assert waited <= 2 * BACKFILL_CYCLE_S + 5, f"it waited {waited} s for two cycles of {BACKFILL_CYCLE_S} s"

    seen = set(_satellites(lab))
    deadline = time.monotonic() + WATCH_S
    while time.monotonic() < deadline:
        seen.update(_satellites(lab))
        time.sleep(5)
    assert len(seen) <= 1 + WATCH_S // 60, f"satellites {sorted(seen)}: submitted more than once a minute"
    assert _show(lab, blocked)["JobState"] == "PENDING"
    planned_with = _when(_show(lab, blocked)["StartTime"])
    assert planned_with <= planned_without + 60, "Slurm plans the blocked job's start later than without us"
    jobs = lab.run(["flexo", "jobs", "--json"]).stdout
    assert f'"job_id": {base}' in jobs
