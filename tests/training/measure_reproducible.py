"""Measures what reproducible mode costs: the step of 4 virtual workers on 2 slots beside that of 2 workers.

    python tests/training/measure_reproducible.py [ROUNDS]

Both have the same global batch. The figures are medians over all steps of all rounds, which take turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from local_job import HERE, local_job

SCRIPT = HERE / "scripts" / "step_times.py"
MODES = {
    "2 workers, PyTorch's own groups": {},
    "2 virtual workers on 2 slots": {"FLEXO_REPRODUCIBLE": "2"},
    "4 virtual workers on 2 slots": {"FLEXO_REPRODUCIBLE": "4"},
}


def steps(folder: Path, variables: dict[str, str]) -> list[float]:
    """The seconds that rank 0's steps took in one job."""
    with local_job(folder, SCRIPT, workers=2, maximum=2, **variables) as job:
        if job.wait() != 0:
            raise RuntimeError(job.output())
        return next(list(each["took"]) for each in job.events("took") if each["rank"] == 0)


def main(rounds: int) -> None:
    """Print the median step of each mode."""
    took: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode, variables in MODES.items():
            with tempfile.TemporaryDirectory() as folder:
                took[mode] += steps(Path(folder) / "job", variables)
    for mode, times in took.items():
        print(f"{mode}: {1000 * statistics.median(times):.0f} ms a step ({len(times)} steps)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
