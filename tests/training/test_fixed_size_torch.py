"""Scripts of torch.distributed that cannot be elastic: all of them run at a fixed size, sharded ones too.

A job whose maximum is its base has PyTorch's own groups. A job that may grow keeps its size if its script
makes groups of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from thorough import rare

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import LocalJob, local_job  # noqa: E402

SCRIPT = HERE / "scripts" / "fixed_size_torch.py"
FIXED, ELASTIC = 2, 4
"""The most workers of jobs with 2 workers in their base."""


def done(job: LocalJob) -> list[dict[str, Any]]:
    """What the two workers have found, by rank."""
    assert job.wait() == 0, job.output()
    found = sorted(job.events("done"), key=lambda event: event["rank"])
    assert [each["rank"] for each in found] == [0, 1]
    return found


def run(folder: Path, case: str, maximum: int = FIXED) -> list[dict[str, Any]]:
    with local_job(folder / "job", SCRIPT, "--case", case, maximum=maximum, MASTER_ADDR="127.0.0.1") as job:
        return done(job)


@pytest.mark.parametrize("maximum", [rare(FIXED), ELASTIC])
def test_groups_of_some_ranks_and_collectives_of_objects(tmp_path: Path, maximum: int) -> None:
    with local_job(tmp_path / "job", SCRIPT, "--case", "groups", maximum=maximum) as job:
        first, second = done(job)
        output = job.output()
    assert (first["sums"], second["sums"]) == ([3.0, 3.0, 1.0], [3.0, 3.0, 2.0])
    assert first["objects"] == second["objects"] == [{"rank": 0}, {"rank": 1}]
    assert ("keeps its size: dist.new_group() at fixed_size_torch.py:" in output) is (maximum == ELASTIC)


@pytest.mark.parametrize("maximum", [rare(FIXED), ELASTIC])
def test_a_model_that_is_sharded_over_all_workers(tmp_path: Path, maximum: int) -> None:
    first, second = run(tmp_path, "sharded", maximum)
    assert first["falls"]
    assert first["whole"] == second["whole"]
    assert first["local"] + second["local"] == 8 * 32 + 32 + 32 * 2 + 2


@pytest.mark.parametrize("maximum", [rare(FIXED), ELASTIC])
def test_samples_that_come_in_a_stream(tmp_path: Path, maximum: int) -> None:
    with local_job(tmp_path / "job", SCRIPT, "--case", "streams", maximum=maximum) as job:
        first, second = done(job)
        output = job.output()
    assert first["steps"] == second["steps"] == 2 * 200 / 4
    assert first["weights"] == second["weights"]
    assert ("keeps its size: it loads an IterableDataset" in output) is (maximum == ELASTIC)


@pytest.mark.parametrize("case", ["by_variables", rare("by_arguments"), rare("by_store")])
def test_a_script_that_says_itself_who_is_in_the_group(tmp_path: Path, case: str) -> None:
    found = run(tmp_path, case)
    assert [each["told"][:2] for each in found] == [[0, 2], [1, 2]]
    assert {each["sum"] for each in found} == {3}


@pytest.mark.thorough
def test_a_script_without_torch_distributed_runs_once_for_each_task(tmp_path: Path) -> None:
    assert not any(each["initialized"] for each in run(tmp_path, "undistributed"))


@pytest.mark.parametrize("maximum", [rare(FIXED), ELASTIC])
def test_a_group_that_is_destroyed_can_be_made_again(tmp_path: Path, maximum: int) -> None:
    assert [each["sums"] for each in run(tmp_path, "twice", maximum)] == [[3, 3], [3, 3]]


@pytest.mark.parametrize("workers", [rare(1), 2])
@pytest.mark.parametrize("launcher", [rare("spawn"), rare("elastic_launch"), "torchrun"])
def test_a_script_that_starts_its_own_workers_keeps_its_size(
    tmp_path: Path, launcher: str, workers: int
) -> None:
    """They are not flexo's, and do not take themselves for the process that has started them."""
    script = HERE / "scripts" / "spawns.py"
    with local_job(tmp_path / "job", script, "--by", launcher, workers=workers) as job:
        assert job.wait() == 0, job.output()
        found, output = job.events("done"), job.output()
    assert sorted(each["rank"] for each in found) == sorted([0, 1] * workers)
    assert {each["sum"] for each in found} == {3.0}
    assert output.count("this job keeps its size: the script starts its own workers") == workers


@pytest.mark.parametrize(("case", "code"), [("dies", 5), rare("dies_early", 6)])
def test_a_worker_that_dies_ends_the_job_with_its_exit_code(tmp_path: Path, case: str, code: int) -> None:
    with local_job(tmp_path / "job", SCRIPT, "--case", case, maximum=FIXED) as job:
        assert job.wait() == code, job.output()
        assert f"the job ends with exit code {code}" in job.output()
