"""A Python program that submits, watches, resizes and cancels an elastic job on a real cluster."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from flexo_lab import Lab

SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
JOB = f"""#!/bin/sh
#SBATCH --output=/dev/null
exec flexo run python {shlex.quote(str(SCRIPT))} --step-seconds 0.2 --epochs 100000
"""
PROGRAM = """
import json
import flexo

said = {}
try:
    flexo.submit("job.sbatch", elastic="1-4")
except flexo.Refusal as error:
    said["refused"] = str(error)
job = flexo.submit("job.sbatch", elastic="1-4", gpus_per_task=1, job_name="from-python")
said["grown"] = job.wait(workers=4, timeout_s=240).workers
said["why"] = str(job.why())
said["answer"] = job.scale(1)
job.cancel()
outcome = job.wait(timeout_s=240)
said["end"] = [outcome.ended, outcome.state, outcome.exit_code]
print(json.dumps(said))
"""


@pytest.mark.training
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_program_submits_resizes_and_cancels_an_elastic_job(lab: Lab) -> None:
    lab.start_flexod()  # tests before may have ended it
    (lab.scratch / "job.sbatch").write_text(JOB)
    done = lab.run([sys.executable, "-W", "ignore", "-c", PROGRAM], timeout=560)
    said = json.loads(done.stdout)
    assert "asks for none" in said["refused"], "the plugin's own sentence"
    assert said["grown"] == 4
    assert said["why"].startswith("4 of 1-4 workers")
    assert "1" in said["answer"]
    assert said["end"][:2] == [True, "CANCELLED"]
    assert said["end"][2] != 0
