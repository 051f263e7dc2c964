"""Scripts of torch.distributed, unchanged: they grow, shrink and lose workers, and no sample is missed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from thorough import rare

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import LocalJob, local_job, train_at  # noqa: E402

SCRIPT = HERE / "scripts" / "plain_ddp.py"
SAMPLES = 4000


def steps_that_count(job: LocalJob) -> list[dict[str, Any]]:
    """Without the practice of newcomers, and without steps that had no effect."""
    return [event for event in job.events("step") if event["world"]]


def check(job: LocalJob, killed: int = 0, samples: int = SAMPLES) -> None:
    """Each sample once an epoch (DistributedSampler fills the last batch up); all replicas alike.

    A worker that was `killed` (its pid) may have had no time to log a step that the others did take.
    """
    steps = steps_that_count(job)
    epochs = 1 + max(each["epoch"] for each in steps)
    last_words = max((each["taken"] for each in steps if each["pid"] == killed), default=0)
    unlogged = (
        [each for each in steps if each["taken"] == last_words + 1 and each["world"] == 2] if killed else []
    )
    for epoch in range(epochs):
        used = Counter(number for each in steps if each["epoch"] == epoch for number in each["numbers"])
        missing = samples - len(used)
        assert missing == 0 or (unlogged and unlogged[0]["epoch"] == epoch and missing <= 22)
        assert sum(used.values()) - samples <= 8
    alike = defaultdict(set)
    for each in steps:
        alike[each["taken"]].add((each["digest"], each["rate"]))
    assert [taken for taken, states in alike.items() if len(states) > 1] == []
    last = [each for each in job.events("epoch") if each["epoch"] == epochs - 1]
    assert len({each["accuracy"] for each in last}) == 1
    assert last[0]["accuracy"] > 0.95


@pytest.mark.parametrize("loading", [rare(0), 2], ids=["in-process", "worker-processes"])
def test_a_ddp_script_grows_and_shrinks(tmp_path: Path, loading: int) -> None:
    """Newcomers come in another epoch than they begin in; the loader's worker processes are begun anew."""
    with local_job(tmp_path / "job", SCRIPT, "--workers", str(loading)) as job:
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
        assert (tmp_path / "job" / "logs" / "model.pt").exists()


@pytest.mark.parametrize("victim", [0, rare(1)])
def test_a_ddp_script_outlives_a_worker(tmp_path: Path, victim: int) -> None:
    """The others go on from the last step, and another worker comes in the place of the one that died."""
    with local_job(tmp_path / "job", SCRIPT) as job:
        job.start("n1", 1)
        train_at(job, 3)
        pids = {each["rank"]: each["pid"] for each in job.events("step") if each["size"] == 3}
        os.kill(pids[victim], signal.SIGKILL)
        job.wait_until(
            "a generation without it",
            lambda: any(e["size"] == 2 and e["world"] > 2 for e in job.events("step")),
        )
        train_at(job, 3)
        at = time.time()
        job.stop()
        assert job.wait() == 0, job.output()
        check(job, killed=pids[victim])
        assert (tmp_path / "job" / "logs" / "model.pt").stat().st_mtime > at, "rank 0 has a successor"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("local-steps", "gradients that are not averaged"),
        rare("hook", "unlike_replicas.py:21 has a state (PowerSGDState)"),
    ],
)
def test_a_script_whose_replicas_may_differ_keeps_its_size(tmp_path: Path, how: str, why: str) -> None:
    with local_job(tmp_path / "job", HERE / "scripts" / "unlike_replicas.py", "--how", how) as job:
        job.wait_until("the reason", lambda: "this job keeps its size: " in job.output())
        assert why in job.output()
        job.stop()
        assert job.wait() == 0, job.output()


@pytest.mark.parametrize("what", ["batch", rare("loader")])
def test_a_script_whose_rank_0_is_ahead_of_the_others_keeps_its_size(tmp_path: Path, what: str) -> None:
    """Newcomers would come to a place at which the others are not."""
    with local_job(tmp_path / "job", SCRIPT, "--alone", what) as job:
        job.wait_until("the reason", lambda: "this job keeps its size: " in job.output())
        assert "at different places of their DataLoaders" in job.output()
        job.stop()
        assert job.wait() == 0, job.output()
        check(job)


@pytest.mark.thorough
def test_a_matrix_with_as_many_rows_as_one_worker_has_samples_deals_no_epoch_otherwise(
    tmp_path: Path,
) -> None:
    """Three workers have 22, 21 and 21 samples: only two of them could take the rows for samples."""
    bound = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}
    with local_job(tmp_path / "job", SCRIPT, "--gathers", "21", **bound) as job:
        train_at(job, 2)
        job.start("n1", 1)
        train_at(job, 3)
        epoch = max(each["epoch"] for each in job.events("step"))
        job.wait_until("two epochs", lambda: job.events("step")[-1]["epoch"] > epoch + 1)
        job.stop()
        assert job.wait() == 0, job.output()
        check(job)


@pytest.mark.thorough
def test_a_newcomer_with_other_collectives_is_sent_away(tmp_path: Path) -> None:
    """The others wait for it until Gloo's timeout, and train on."""
    bound = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}
    with local_job(tmp_path / "job", SCRIPT, "--stranger", **bound) as job:
        train_at(job, 2)
        job.start("n1", 1)
        job.wait_until("its end", lambda: "may act unlike the others" in job.output())
        train_at(job, 2)
        job.stop()
        assert job.wait() == 0, job.output()
        check(job)


def test_a_script_that_resumes_from_its_own_checkpoint_grows(tmp_path: Path) -> None:
    """Newcomers load the checkpoint too, and count their epochs from another one than the founders did."""
    with local_job(tmp_path / "job", SCRIPT, "--resume", "--samples", "1000", "--epochs", "400") as job:
        job.wait_until("some epochs", lambda: any(each["epoch"] == 9 for each in job.events("step")))
        job.start("n1", 1)
        train_at(job, 3)
        job.send_away("n1")
        train_at(job, 2)
        job.start("n2", 1)
        train_at(job, 3)
        job.stop()
        assert job.wait() == 0, job.output()
        check(job, samples=1000)
        assert max(each["loaded"] for each in job.events("began")) > 8


# --- the ways in which people write it ---------------------------------------------------------------------

IDIOMS = {
    "validation_first": True,
    "by_steps": True,
    "by_iterator": True,
    "cycled": False,
    "no_loader": False,
    "accumulate": True,
    "mixed_precision": True,
    "two_models": True,
    "phases": True,
    "gathers": True,
    "compiled": False,
    "unused": True,
    "undivided": False,
}
"""Whether each sample is used once an epoch."""
CHECKING = ("validation_first", "by_steps", "by_iterator", "cycled", "no_loader")
"""Those with collectives every tenth step."""
IN_EVERY_RUN = ("accumulate",)
SCALED = "mixed_precision"
"""A gradient scaler leaves out every seventh step."""


@pytest.mark.parametrize(
    "idiom",
    [each if each in IN_EVERY_RUN else rare(each) for each in IDIOMS],
)
def test_however_it_is_written(tmp_path: Path, idiom: str) -> None:
    """It grows, shrinks, loses a worker and grows. Ranks meet in collectives at the same steps."""
    script = HERE / "scripts" / "ddp_idioms.py"
    with local_job(tmp_path / "job", script, "--idiom", idiom) as job:
        train_at(job, 2)
        job.start("n1", 1)
        train_at(job, 3)
        job.send_away("n1")
        train_at(job, 2)
        steps = job.events("step")
        newest = max(each["world"] for each in steps)
        victim = next(
            each["pid"] for each in reversed(steps) if each["world"] == newest and each["rank"] == 1
        )
        os.kill(victim, signal.SIGKILL)
        job.start("n2", 1)
        train_at(job, 3)
        checks = len(job.events("check"))
        job.wait_until("checks", lambda: len(job.events("check")) > checks + 6 or idiom not in CHECKING)
        job.stop()
        assert job.wait() == 0, job.output()
        assert "EnforceNotMet" not in job.output(), "ranks made different calls"
        counted = steps_that_count(job)
        assert states_differ(counted) == []
        if IDIOMS[idiom]:
            check_samples(counted, victim, two_optimizers=idiom == "two_models", scaled=idiom == SCALED)
        if idiom in (SCALED, "no_loader"):
            assert len({each["state"][2] for each in counted}) > 1, "the scale goes up and down"
        at_checks = Counter(each["step"] for each in job.events("check") if each["world"])
        last = max(at_checks, default=0)
        assert not at_checks or at_checks[last] == 3


def states_differ(steps: list[dict[str, Any]]) -> list[int]:
    """The steps after which replicas differ."""
    alike = defaultdict(set)
    for each in steps:
        alike[each["steps"]].add(tuple(each["state"]))
    return [step for step, states in alike.items() if len(states) > 1]


def check_samples(
    steps: list[dict[str, Any]], killed: int, *, two_optimizers: bool = False, scaled: bool = False
) -> None:
    """Each sample of all whole epochs was used once; the killed worker's last step may not be on record.

    A death between the steps of two optimizers leaves the second one out, so that no worker logs that step.
    A batch for which a gradient scaler has left out the step, just before a death, is dealt out again.
    """
    last_words = max(each["steps"] for each in steps if each["pid"] == killed)
    again = 64 if scaled and 0 in (last_words % 7, (last_words + 1) % 7) else 0
    for epoch in range(max(each["epoch"] for each in steps)):
        of_epoch = [each for each in steps if each["epoch"] == epoch]
        used = Counter(number for each in of_epoch for number in each["numbers"])
        steps_of_epoch = {each["steps"] for each in of_epoch}
        unlogged = last_words + 1 in steps_of_epoch
        halved = two_optimizers and {last_words, last_words + 2} <= steps_of_epoch and not unlogged
        assert len(used) >= 2000 - (64 if halved else 32 if unlogged else 0)
        assert sum(used.values()) - len(used) <= 3 + again
