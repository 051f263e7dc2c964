"""The example with submitit, on a real cluster: an elastic job grows, and its result comes back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flexo_lab import Lab

pytest.importorskip("submitit")
EXAMPLE = Path(__file__).parents[2] / "examples" / "submitit" / "submit_digits.py"


@pytest.mark.training
@pytest.mark.slow
@pytest.mark.thorough
def test_a_job_of_submitit_grows_and_returns_its_result(lab: Lab) -> None:
    lab.start_flexod()  # tests before may have ended it
    folder = lab.scratch / "submitit"
    options = ["--elastic=1-4", "--epochs=12", "--pause=0.2", f"--folder={folder}"]
    done = lab.run([sys.executable, str(EXAMPLE), *options], timeout=280)
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("job ")
    assert "4 of 1-4 workers" in done.stdout
    assert last == "trained"
