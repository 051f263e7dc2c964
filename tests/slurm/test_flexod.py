"""flexod on a real cluster: an administrator's first week (dry run), and satellites whose base is gone."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flexo_lab import Lab

BOUND_S = 90
SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
ELASTIC = f"""#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --elastic=1-4
exec flexo run python {shlex.quote(str(SCRIPT))} --step-seconds 0.2 --epochs 100000
"""


def _wait(what: Callable[[], object], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {BOUND_S} s"
        time.sleep(0.5)


def _jobs(lab: Lab) -> list[int]:
    return [int(line) for line in lab.run(["squeue", "--noheader", "--format=%A"]).stdout.split()]


@pytest.mark.training
@pytest.mark.slow
def test_a_dry_run_says_what_it_would_do_and_does_nothing(lab: Lab) -> None:
    toml = lab.layout.flexo_toml
    before = toml.read_text()
    toml.write_text(before.replace("[controller]", "[controller]\ndry_run = true"))
    lab.restart_flexod()
    try:
        base = int(lab.run(["sbatch", "--parsable", "--output=%j.out"], stdin=ELASTIC).stdout)

        def explained() -> str:
            return lab.run(["flexo", "why", str(base)], check=False).stdout

        _wait(lambda: "would grow by 3 workers" in explained(), "the event store says what it would do")
        time.sleep(3)
        assert _jobs(lab) == [base], "a dry run grants nothing, so no satellite is submitted"
        assert "dry run" in explained()
        status = json.loads(lab.run(["flexo", "status", "--json"]).stdout)
        assert status["dry_run"] is True
        assert status["gpus_in_satellites"] == 0
    finally:
        toml.write_text(before)
        claims = _claims_of_another_user(lab)
        lab.restart_flexod()
    _wait(lambda: set(_jobs(lab)) - {base, *claims}, "without dry_run the same job grows")
    (satellite,) = set(_jobs(lab)) - {base, *claims}
    shown = lab.run(["squeue", "--noheader", "--format=%C|%k", f"--jobs={satellite}"]).stdout
    assert shown.strip().endswith("workers=3"), shown
    status = json.loads(lab.run(["flexo", "status", "--json"]).stdout)
    assert status["unknown_satellites"] == len(claims) - 1


def _claims_of_another_user(lab: Lab) -> list[int]:
    """A job that could grow to all GPUs, and held jobs with the comments of satellites on all nodes."""
    options = ["-n", "1", "--gpus-per-task=1", "--elastic=1-13", "--wrap=sleep 600"]
    base = int(lab.run(["sbatch", "--parsable", *options], user="games").stdout)
    claims = [base]
    for node in ("t1", "t2", "t3"):
        tag = f"flexo-satellite base={base} restart=0 grant=g{node} workers=4"
        held = ["--hold", "--partition=flex", "--time=5", f"--nodelist={node}", "--wrap=sleep 600"]
        submitted = lab.run(["sbatch", "--parsable", *held, f"--comment={tag}"], user="games")
        claims.append(int(submitted.stdout))
    return claims


def test_a_satellite_whose_base_is_gone_is_ended(lab: Lab) -> None:
    tag = "flexo-satellite base=987654 restart=0 grant=g1 workers=1"
    orphan = int(
        lab.run(
            ["sbatch", "--parsable", "--partition=flex", "--time=5", f"--comment={tag}", "--wrap=sleep 600"],
            user="games",
        ).stdout
    )
    _wait(lambda: orphan not in _jobs(lab), "the orphan is cancelled")


def test_a_job_in_the_satellite_partition_that_is_no_satellite_is_left_alone(lab: Lab) -> None:
    wrap = ["--wrap=sleep 600", "--partition=flex", "--time=5", "--comment=satellite base=987654"]
    plain = int(lab.run(["sbatch", "--parsable", *wrap], user="games").stdout)
    tag = "flexo-satellite base=987655 restart=0 grant=g1 workers=1"
    marker = int(lab.run(["sbatch", "--parsable", *wrap[:3], f"--comment={tag}"], user="games").stdout)
    _wait(lambda: marker not in _jobs(lab), "flexod has looked twice")
    assert plain in _jobs(lab)
