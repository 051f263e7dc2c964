"""The rules for batches and learning rates of torch.distributed scripts (--batch-rule, --scale-lr)."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_job import local_job
from test_ddp import SCRIPT, check, steps_that_count, train_at

RATE, DECAY, DECAY_EVERY = 0.01, 0.99, 10
"""Of the script's optimizer and scheduler."""
BATCH = 32


@pytest.mark.parametrize(("rule", "exponent"), [("", 0.0), ("linear", 1.0), ("sqrt", 0.5)])
@pytest.mark.thorough
def test_each_worker_keeps_its_batch_and_rates_change_only_on_request(
    tmp_path: Path, rule: str, exponent: float
) -> None:
    """From 2 workers to 4 and back to 3: rates at any step are those of the schedule, times one factor."""
    rules = {"FLEXO_BATCH_RULE": "grow", "FLEXO_SCALE_LR": rule}
    with local_job(tmp_path / "job", SCRIPT, "--epochs", "1000", **rules) as job:
        train_at(job, 2)
        job.start("n1", 1)
        train_at(job, 3)
        job.start("n2", 1)
        train_at(job, 4)
        job.send_away("n1")
        train_at(job, 3)
        job.stop()
        assert job.wait() == 0, job.output()
        check(job)
        steps = steps_that_count(job)
    assert {each["size"] for each in steps} == {2, 3, 4}
    for each in steps:
        scheduled = RATE * DECAY ** (each["taken"] // DECAY_EVERY)
        assert math.isclose(each["rate"], scheduled * (each["size"] / 2) ** exponent, rel_tol=1e-9), each
    full = [each for each in steps if len(each["numbers"]) == BATCH]
    assert {each["size"] for each in full} == {2, 3, 4}
    assert len(full) > 0.8 * len(steps), "only the last batch of an epoch may be smaller"
