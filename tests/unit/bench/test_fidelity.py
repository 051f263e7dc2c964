"""The pure parts of make bench-fidelity: the workload, what calibration makes of its samples, the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flexo.scalability.table import TableSpeed
from flexo_bench.fidelity import calibration, comparison, earlier, report, workload
from flexo_bench.fidelity.running import Life
from flexo_bench.fidelity.submitting import WorkerEvent, WorkerLog, read_log
from flexo_simulation.on_slurm.times import SlurmTimes, StartTime

pytestmark = pytest.mark.thorough

TIMES = SlurmTimes(
    submit_s=0.5, free_s=1.0, backfill_s=3.0, boot=StartTime(5.0), end_s=1.0, satellite_s=1.0,
    warm=StartTime(6.0, 0.5), leave_s=2.0, min_resize_interval_s=5.0,
)  # fmt: skip
MEASURED = calibration.Calibration(
    TIMES, TableSpeed.of({workers: workers / workload.step_s(workers) for workers in (1, 2, 8)}),
    calibration.Samples(),
)  # fmt: skip


def life(number: int, began_at: float, ended_at: float, resizes: int = 0) -> Life:
    job = workload.Job(number, 0.0, 1, 4, 10, 0.0)
    sizes = tuple((began_at + turn, 1 + turn) for turn in range(resizes + 1))
    return Life(job, 0.0, began_at, ended_at, sizes)


def test_a_seed_draws_the_same_jobs_and_another_one_others() -> None:
    assert workload.draw(14, 1) == workload.draw(14, 1)
    assert workload.draw(14, 1) != workload.draw(14, 2)


def test_drawn_jobs_are_of_both_kinds_and_fit_their_limits() -> None:
    jobs = workload.draw(30, 5)
    assert {(job.elastic, job.ddp) for job in jobs} == {(True, False), (True, True), (False, False)}
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    for job, simulated in zip(jobs, workload.simulated(jobs, MEASURED.speed).jobs, strict=True):
        alone_s = job.seconds or job.epochs * workload.EPOCH * workload.step_s(job.least) / job.least
        assert simulated.time_limit_s is not None
        assert alone_s < simulated.time_limit_s


def test_starting_times_go_by_a_line_through_what_was_measured() -> None:
    assert calibration.line_through({1: 6.0, 3: 8.0}) == StartTime(6.0, 1.0)
    assert calibration.line_through({2: 7.0, 4: 7.0}) == StartTime(7.0, 0.0)
    assert calibration.line_through({1: 6.0}) == StartTime(6.0, 0.0)
    assert calibration.line_through({1: 6.0, 3: 5.0}).more_s == 0.0


def test_a_pause_is_the_gap_between_two_sizes_less_a_step() -> None:
    early = [WorkerEvent("batch", at, 1) for at in (1.0, 2.0, 3.0)]
    late = [WorkerEvent("batch", at, 2) for at in (4.5, 5.5, 6.5)]
    log = WorkerLog((*early, WorkerEvent("enter", 3.2, 2), *late))
    assert calibration.pause_s(log, 2, since=0.0) == pytest.approx(0.5)
    assert log.sizes == ((1.0, 1), (3.2, 2))


def test_only_rank_0_is_read_and_torn_lines_are_left_out(tmp_path: Path) -> None:
    def line(event: str, at: float, rank: int) -> str:
        return json.dumps({"event": event, "time": at, "rank": rank, "size": 2}) + "\n"

    (tmp_path / "1.jsonl").write_text(line("enter", 1.0, 0) + line("batch", 2.0, 0) + '{"event": "ba')
    (tmp_path / "2.jsonl").write_text(line("enter", 1.0, 1))
    assert read_log(tmp_path).lines == (WorkerEvent("enter", 1.0, 2), WorkerEvent("batch", 2.0, 2))


def test_the_simulator_runs_the_workload_under_every_policy_of_the_benchmark() -> None:
    jobs = workload.draw(8, 3)
    for policy in ("backfill", "greedy", "lyra"):
        simulated = comparison.simulated_side(jobs, policy, MEASURED)
        assert len(simulated.lives) == len(jobs)
        assert simulated.makespan_s > max(job.at_s for job in jobs)
    assert comparison.simulated_side(jobs, "backfill", MEASURED).resizes == 0


def test_differences_are_the_simulators_figures_to_the_labs() -> None:
    lab = comparison.side([life(1, 1.0, 101.0), life(2, 2.0, 50.0, resizes=2)])
    simulator = comparison.side([life(1, 1.0, 91.0), life(2, 2.0, 55.0, resizes=1)])
    pair = comparison.Pair("lyra", 1, 0.5, lab, simulator, MEASURED)
    assert (lab.makespan_s, lab.resizes, lab.mean_wait_s) == (101.0, 2, 1.5)
    assert pair.mean_jct == pytest.approx((91 + 55) / (101 + 50) - 1)
    assert pair.makespan == pytest.approx(91 / 101 - 1)
    assert pair.median_of_each == pytest.approx((10 / 101 + 0.1) / 2)


@pytest.mark.parametrize(("ended_at", "verdict"), [(104.0, "within"), (106.0, "MISSED")])
def test_the_report_says_whether_the_goal_is_met(tmp_path: Path, ended_at: float, verdict: str) -> None:
    lab, simulator = comparison.side([life(1, 1.0, 100.0)]), comparison.side([life(1, 1.0, ended_at, 1)])
    pairs = (comparison.Pair("lyra", 1, 0.5, lab, simulator, MEASURED),)
    found = report.Found("make bench-fidelity", {}, pairs, 60.0)
    assert any(line.startswith("lyra") and verdict in line for line in report.table(found))
    report.write(found, tmp_path / "fidelity.json")
    written = json.loads((tmp_path / "fidelity.json").read_text())
    assert written["off"]["lyra"]["mean_jct"]["median"] == pytest.approx(ended_at / 100 - 1)
    report.draw(pairs, tmp_path / "fidelity.png")
    assert (tmp_path / "fidelity.png").stat().st_size > 1000


def test_an_earlier_run_is_compared_anew(tmp_path: Path) -> None:
    jobs = workload.draw(4, 1)
    lab = comparison.side(
        [Life(job, job.at_s, job.at_s + 1, job.at_s + 99, ((job.at_s + 1, 1),)) for job in jobs]
    )
    pair = comparison.Pair(
        "greedy", 1, 0.5, lab, comparison.simulated_side(jobs, "greedy", MEASURED), MEASURED
    )
    report.write(report.Found("", {"cores": 2}, (pair,), 1.0), tmp_path / "fidelity.json")
    assert list(earlier.pairs(tmp_path / "fidelity.json")) == [pair]
    assert earlier.machine(tmp_path / "fidelity.json") == {"cores": 2}
