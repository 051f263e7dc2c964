"""flexod with the policy `throughput` gives a job the workers and the batch that its trials speak for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from controller_world import KEY, FakeLeader, World

from flexo.model.measured import BatchTime, ScriptKey, TriedBatches
from flexo.model.queue import ElasticRequest
from flexo.model.ranges import Range
from flexo_protos.all_reduce_file import AllReduceTable

QUICK = AllReduceTable("cpu", (2, 4), (1e6, 2e6), ((0.001, 0.002), (0.002, 0.004)))
SLOW = AllReduceTable("cpu", (2, 4), (1e6, 2e6), ((9.0, 18.0), (18.0, 36.0)))
TRIED = TriedBatches(1_000_000, 64, (BatchTime(32, 0.1, 8), BatchTime(64, 0.19, 8)), 3.0)
SCRIPT = ScriptKey("ada", "d1", "")


def world_of(tmp_path: Path, all_reduce: AllReduceTable | None, policy: str = "throughput") -> World:
    file = tmp_path / "all_reduce.json"
    if all_reduce is not None:
        file.write_text(all_reduce.to_text())
    return World(tmp_path, policy=policy, all_reduce=None if all_reduce is None else file)


def batch_job(world: World) -> FakeLeader:
    elastic = ElasticRequest(Range(1, 4), batch=Range(32, 256))
    return world.job(elastic=elastic)


def test_a_job_is_tried_with_its_base_and_then_grows_to_where_its_trials_expect_most(tmp_path: Path) -> None:
    world = world_of(tmp_path, QUICK)
    leader = batch_job(world)
    world.go(30)
    assert world.cluster.satellites() == []
    leader.says = {"script": "d1", "tried": TRIED}
    world.go(60)
    assert sum(workers for _, workers in world.cluster.satellites()) == 3
    assert leader.batch == 256


def test_a_job_whose_all_reduces_cost_more_than_workers_gain_keeps_its_base(tmp_path: Path) -> None:
    world = world_of(tmp_path, SLOW)
    leader = batch_job(world)
    leader.says = {"script": "d1", "tried": TRIED}
    world.go(60)
    assert world.cluster.satellites() == []


@pytest.mark.parametrize(
    ("policy", "all_reduce", "wanted"),
    [("throughput", QUICK, True), ("throughput", None, False), ("lyra", QUICK, False)],
)
def test_trials_are_wanted_by_policies_that_go_by_them_once_the_cluster_is_calibrated(
    tmp_path: Path, policy: str, all_reduce: AllReduceTable | None, wanted: bool
) -> None:
    assert world_of(tmp_path, all_reduce, policy).controller.trials_of(SCRIPT).wanted is wanted


def test_a_script_that_was_tried_is_known_to_the_next_job_and_after_a_restart(tmp_path: Path) -> None:
    world = world_of(tmp_path, QUICK)
    batch_job(world).says = {"script": "d1", "tried": TRIED}
    world.go(4)
    user = world.cluster.queue[KEY.job_id].user
    script = ScriptKey(user, "d1", "")
    assert world.controller.trials_of(script).known_weights == 1_000_000
    world.restart()
    assert world.controller.trials_of(script).known_weights == 1_000_000


def test_a_tried_job_that_tells_its_progress_has_a_forecast_of_its_rest_by_batch(tmp_path: Path) -> None:
    world = world_of(tmp_path, QUICK)
    leader = batch_job(world)
    leader.says = {"script": "d1", "tried": TRIED, "progress": 0.5}
    world.go(4)
    times = world.controller.jobs()[0].by_batch
    assert times is not None
    assert times.batches() == (32, 64, 128, 256)
    # the same 64 samples a worker: a step of one takes 0.19 s, one of two 0.001 s more for the all-reduce
    assert times.seconds(64, 1) / times.seconds(128, 2) == pytest.approx(2 * 0.19 / 0.191)
    page = Path(__file__).resolve().parents[2] / "docs/howto/batch-and-learning-rate.md"
    (shown,) = re.findall(r"```text\n(.*)\n```", page.read_text())
    assert shown in world.controller.explain(KEY.job_id)


@pytest.mark.parametrize("told", [{"tried": TRIED}, {"progress": 0.5}])
def test_without_trials_or_progress_or_time_limit_there_is_no_forecast(
    tmp_path: Path, told: dict[str, object]
) -> None:
    world = world_of(tmp_path, QUICK)
    batch_job(world).says = {"script": "d1", **told}
    world.go(4)
    assert world.controller.jobs()[0].by_batch is None
