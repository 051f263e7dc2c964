"""The data pipeline in real jobs: every sample exactly once an epoch, whoever comes, goes and dies."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest
from elastic_jobs import TRACE, Job, Submit, agent_called, take_nodes, wait_for_start
from thorough import rare

from flexo_lab import Lab

pytestmark = pytest.mark.slow

SAMPLES = 400


def check_samples(job: Job) -> int:
    """Every sample of every epoch that ended counts once; how many epochs that are.

    Ranks log what they train on before they do. What a crash took back is trained on again, in a
    later generation, under the same number of the step: the last generation that took it counts.
    """
    took = job.events("took")
    last: dict[int, float] = {}
    for event in took:
        last[event["step"]] = max(event["generation"], last.get(event["step"], 0.0))
    assert set(last) == set(range(1, max(last) + 1)), "a step was left out"
    seen: dict[int, Counter[int]] = {}
    for event in took:
        if event["generation"] == last[event["step"]]:
            seen.setdefault(event["epoch"], Counter()).update(event["samples"])
    for epoch, samples in seen.items():
        assert set(samples.values()) == {1}, f"epoch {epoch}: {samples.most_common(3)}"
        if epoch < max(seen):
            assert len(samples) == SAMPLES, f"epoch {epoch} has {len(samples)} samples"
    return max(seen)


@pytest.mark.parametrize("face", [rare("processes"), "sampler", rare("dataset"), rare("generator")])
def test_every_sample_counts_once_while_workers_come_and_go(submit: Submit, alone: Lab, face: str) -> None:
    job = submit("elastic_data.py", "--face", face, "--samples", str(SAMPLES), elastic="1-3")
    job.wait_for_size(3)
    asked = time.time()
    rigid = take_nodes(alone, 3, 3, 4)
    job.wait_for_size(1, after=asked)
    wait_for_start(job, rigid)
    job.wait_for_size(3, after=asked)
    job.stop()
    assert job.wait() == 0, job.output()[-6000:]
    assert check_samples(job) >= 1
    assert "Traceback" not in job.output()


def test_after_a_crash_every_sample_counts_once_since_the_last_commit(submit: Submit, alone: Lab) -> None:
    arguments = ("--samples", str(SAMPLES), "--commit-every", "3")
    options = ("-n", "2", "--gpus-per-task=1")
    job = submit("elastic_data.py", *arguments, options=options, elastic="2-3")
    job.wait_for_size(3)
    for rank in (1, 0, 2):
        victim = next(event for event in reversed(job.events("enter")) if event["rank"] == rank)
        killed = time.time()
        os.kill(victim["pid"], signal.SIGKILL)
        job.wait_for_size(3, after=killed)
    job.stop()
    assert job.wait() == 0, job.output()[-6000:]
    assert check_samples(job) >= 1


@pytest.mark.thorough
def test_when_the_leader_is_killed_every_sample_counts_once_since_the_last_commit(
    submit: Submit, alone: Lab
) -> None:
    """Its workers go with it; the others learn from each other what is left, and tell the next leader."""
    options = ("-N", "2", "-n", "2", "--gpus-per-task=1")
    arguments = ("--samples", str(SAMPLES), "--commit-every", "2")
    job = submit("elastic_data.py", *arguments, options=options, elastic="2-3", environment=(TRACE,))
    job.wait_for_size(3)
    for count in (1, 2):
        led_by = [event["agent"] for event in job.trace("leader")]
        assert len(led_by) == count
        killed = time.time()
        agent_called(job, led_by[-1]).parent().kill()  # its supervisor, and so all of its node
        job.wait_for_size(3, after=killed)
    job.stop()
    assert job.wait() == 0, job.output()[-6000:]
    assert check_samples(job) >= 1
