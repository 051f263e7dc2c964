"""Logs of Sia's simulator, and the replay of their decisions: the same restarts, the same ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from small_sia import write_artifact

from flexo_bench.price.replay import replay
from flexo_simulation.formats import sia, sia_log
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.sia_log import Given

RESTART_S = sia.RESTART_S["bert"]


def logged(folder: Path, *rounds: tuple[float, str | None, list[int]], done_at: float | None) -> Path:
    """A log in which the job `bert-0`, submitted at 53.5 s, has these GPUs from these times on."""
    job = {"name": "bert-0", "batch_size": 16, "submission_time": 53.5, "n_avg": float("nan")}
    lines = [
        {
            "timestamp": at,
            "submitted_jobs": [job | {"cluster": on, "placement": gpus, "completion_time": None}],
        }
        for at, on, gpus in rounds
    ]
    if done_at is not None:
        end = job | {"cluster": None, "placement": [], "completion_time": done_at}
        lines.append({"timestamp": 60.0 * (done_at // 60 + 1), "submitted_jobs": [end]})
    path = folder / "workload-1.log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ours(folder: Path, log: Path) -> float:
    """The completion time of the one job in the replay."""
    found = replay(folder, "philly", 1, sia.MIXED, log)
    assert found.unfinished == 0
    return found.ours_s


def test_a_log_has_what_each_job_was_given_and_when_it_was_done(tmp_path):
    found = sia_log.read(logged(tmp_path, (60, "rtx", [2, 1]), (120, None, []), done_at=500.5))
    assert found.rounds[60.0] == {"bert-0": Given("rtx", (2, 1), 16)}
    assert found.rounds[120.0] == {"bert-0": Given("", (), 16)}
    assert found.rounds[540.0] == {}
    assert found.jct_s == {"bert-0": 447.0}
    assert found.mean_jct_s == 447.0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not JSON", r"workload-1\.log:2: the line: Invalid JSON"),
        ('{"submitted_jobs": []}', r"workload-1\.log:2: timestamp: Field required"),
        ('{"timestamp": 60, "submitted_jobs": [{"name": "a"}]}', r"log:2: submitted_jobs\.0\.cluster: Field"),
    ],
)
def test_a_line_of_a_log_that_makes_no_sense_is_named(tmp_path, line, why):
    log = logged(tmp_path, (60, "rtx", [1]), done_at=None)
    log.write_text(log.read_text() + line + "\n")
    with pytest.raises(BadTrace, match=why):
        sia_log.read(log)


def test_a_log_in_which_nothing_is_done_says_so(tmp_path):
    with pytest.raises(BadTrace, match="no job is done"):
        sia_log.read(logged(tmp_path, (60, "rtx", [1]), done_at=None))


def test_a_job_pays_for_its_start_and_trains_as_measured(tmp_path):
    folder = write_artifact(tmp_path)
    # two passes of 8 samples, each 2 s by the table, and 2.4 s by the slowdown; epochs of 262 s and 264 s
    took = ours(folder, logged(tmp_path, (60, "rtx", [1]), done_at=500.0))
    assert took == 60.0 - 53.5 + RESTART_S + 262.0 + 264.0


def test_a_move_that_keeps_the_shape_and_the_type_is_free_as_in_sias_simulator(tmp_path):
    folder = write_artifact(tmp_path)
    stays = ours(folder, logged(tmp_path, (60, "rtx", [1]), done_at=500.0))
    again = ours(folder, logged(tmp_path, (60, "rtx", [1]), (180, "rtx", [1]), done_at=500.0))
    assert again == stays


def test_a_move_to_another_type_costs_a_restart_and_changes_the_speed(tmp_path):
    folder = write_artifact(tmp_path)
    stays = ours(folder, logged(tmp_path, (60, "rtx", [1]), done_at=500.0))
    like = ours(folder, logged(tmp_path, (60, "rtx", [1]), (240, "aws", [1]), done_at=500.0))
    assert like == pytest.approx(stays + RESTART_S, abs=1.0)
    faster = ours(folder, logged(tmp_path, (60, "dgx-ext", [1]), done_at=500.0))
    assert faster - 6.5 - RESTART_S == pytest.approx((stays - 6.5 - RESTART_S) / 2, abs=2.0)


def test_a_job_that_waits_goes_on_where_it_was_and_pays_for_a_start(tmp_path):
    folder = write_artifact(tmp_path)
    stays = ours(folder, logged(tmp_path, (60, "rtx", [1]), done_at=500.0))
    waits = logged(tmp_path, (60, "rtx", [1]), (240, None, []), (360, "rtx", [1]), done_at=500.0)
    assert ours(folder, waits) == pytest.approx(stays + 120.0 + RESTART_S, abs=1.0)


def test_a_log_of_another_cluster_is_refused(tmp_path):
    folder = write_artifact(tmp_path)
    with pytest.raises(BadTrace, match="at 60 s it gives 25 GPUs of aws, of 24"):
        ours(folder, logged(tmp_path, (60, "aws", [4, 4, 4, 4, 4, 4, 1]), done_at=500.0))


def test_a_log_of_another_workload_is_refused(tmp_path):
    folder = write_artifact(tmp_path, "bert-7,53,bert,2,16\n")
    with pytest.raises(BadTrace, match="bert-0 is no job of"):
        ours(folder, logged(tmp_path, (60, "aws", [1]), done_at=500.0))


def test_the_artifacts_own_logs_are_replayed_within_one_percent():
    folder = Path(os.environ.get("SIA", ""))
    logs = sorted(folder.glob("logs/*/*/workload-*.log")) if "SIA" in os.environ else []
    if not logs:
        pytest.skip(
            "needs SIA=DIR: the artifact, with the logs of its simulator in DIR/logs"
            " (docs/evidence/papers-sia.md)"
        )
    for log in logs:
        cluster, trace, number = *log.parts[-3:-1], int(log.stem.removeprefix("workload-"))
        assert abs(replay(folder, trace, number, sia.CLUSTERS[cluster], log).difference) < 0.01, log
