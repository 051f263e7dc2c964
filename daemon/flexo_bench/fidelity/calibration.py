"""The simulator's inputs: every delay and speed, measured on jobs of their own, never on the workload.

They are measured shortly before and shortly after a run of the workload, because the machine's other load
decides how long workers take to start. A delay is the mean of its samples, because mean times are compared.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from flexo.config import load
from flexo.scalability.table import TableSpeed
from flexo_bench.fidelity.submitting import (
    TRACE,
    Submitted,
    WorkerLog,
    endless,
    submit,
    wait_for,
    wait_for_ends,
)
from flexo_bench.fidelity.workload import Job
from flexo_lab import Lab
from flexo_simulation.on_slurm.times import SlurmTimes, StartTime

SIZES = (1, 2, 5, 8)
"""Numbers of workers of the resized job, in order. Then another job preempts its satellites."""
STEADY_BATCHES = 12
"""Steps at each size from which the speed at that size is taken."""
BOUND_S = 120.0
_SHORT_S, _SHORT_EPOCHS = 3.0, 1

Tell = Callable[[str], None]


@dataclass
class Samples:
    """The measurements, in seconds. Each list has the samples of one delay of SlurmTimes."""

    submit: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    boot: dict[int, list[float]] = field(default_factory=dict)
    """Per number of the base's workers: from the job's begin until it trained."""
    end: list[float] = field(default_factory=list)
    granted: list[float] = field(default_factory=list)
    """Times from a grant until its satellite was submitted."""
    joined: dict[int, list[float]] = field(default_factory=dict)
    """Per number of workers: times from a grant until its workers trained."""
    gave_way: list[float] = field(default_factory=list)
    """Times from the submission of a job that needs satellites' GPUs until that job began."""
    look: list[float] = field(default_factory=list)
    join: list[float] = field(default_factory=list)
    part: list[float] = field(default_factory=list)
    steps: dict[int, list[float]] = field(default_factory=dict)
    """Per number of the job's workers: durations of steps."""

    def __add__(self, other: Samples) -> Samples:
        """Join the samples of both."""
        return Samples(
            **{each.name: _both(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)}
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """Delays and speeds of the lab."""

    times: SlurmTimes
    speed: TableSpeed
    """Speed per number of workers, in mini-batches of one worker per second."""
    samples: Samples


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of the lab's Slurm and flexod, as configured."""

    backfill_s: float
    min_resize_interval_s: float

    @classmethod
    def of(cls, lab: Lab) -> Intervals:
        """Read the intervals from the lab's configuration."""
        config = lab.run(["scontrol", "show", "config"]).stdout
        backfill = re.search(r"bf_interval=(\d+)", config)
        controller = load(lab.layout.flexo_toml).controller
        return cls(float(backfill[1]) if backfill else 30.0, controller.min_resize_interval_s)


def measure(lab: Lab, folder: Path, tell: Tell) -> Samples:
    """Measure all delays on a lab whose flexod runs `greedy`. Raises LabRunFailed."""
    samples, gpus = Samples(), lab.spec.nodes * lab.spec.gpus_per_node
    _ordinary(lab, gpus, folder / "ordinary", samples)
    for ddp in (False, True):
        for least in (1, 2):
            _short(lab, least, folder / f"short{least}{ddp}", samples, ddp=ddp)
        _resized(lab, folder / f"resized{ddp}", samples, ddp=ddp)
    tell(
        f"calibration: start {samples.submit[0]:.1f} s, turnover {samples.free[0]:.1f} s,"
        f" boot {samples.boot[1][0]:.1f} s, end {samples.end[0]:.1f} s,"
        f" giving way {samples.gave_way[0]:.1f} s,"
        f" joining {', '.join(f'{mean(each):.1f} s ({number})' for number, each in samples.joined.items())}"
    )
    return samples


def calibrate(samples: Samples, intervals: Intervals) -> Calibration:
    """Compute the simulator's inputs from the samples."""
    submit_s = mean(samples.submit)
    satellite_s = mean(samples.granted) + submit_s
    joined = {workers: mean(found) - satellite_s for workers, found in samples.joined.items()}
    times = SlurmTimes(
        submit_s=submit_s,
        free_s=mean(samples.free),
        backfill_s=intervals.backfill_s,
        boot=line_through({workers: mean(found) for workers, found in samples.boot.items()}),
        end_s=mean(samples.end),
        look_s=mean(samples.look),
        satellite_s=satellite_s,
        warm=line_through(joined),
        leave_s=max(0.0, mean(samples.gave_way) - submit_s),
        join_s=mean(samples.join),
        part_s=mean(samples.part),
        min_resize_interval_s=intervals.min_resize_interval_s,
    )
    rates = {workers: workers / mean(found) for workers, found in samples.steps.items()}
    return Calibration(times, TableSpeed.of(rates), samples)


def _ordinary(lab: Lab, gpus: int, folder: Path, samples: Samples) -> None:
    """Run two jobs, each on the whole cluster: the second waits for the first."""
    jobs = [submit(lab, _rigid(number, gpus), folder / str(number)) for number in (1, 2)]
    wait_for_ends(jobs, BOUND_S)
    samples.submit.append(_began(jobs[0]) - jobs[0].at)
    samples.free.append(_began(jobs[1]) - _ended(jobs[0]))


def _short(lab: Lab, least: int, folder: Path, samples: Samples, *, ddp: bool) -> None:
    """Run an elastic job that ends before it can grow."""
    job = submit(lab, Job(1, 0.0, least, least + 1, _SHORT_EPOCHS, 0.0, ddp=ddp), folder)
    wait_for_ends([job], BOUND_S)
    lines = job.log().lines
    samples.submit.append(_began(job) - job.at)
    samples.boot.setdefault(least, []).append(lines[0].at - _began(job))
    samples.end.append(_ended(job) - lines[-1].at)


def _resized(lab: Lab, folder: Path, samples: Samples, *, ddp: bool) -> None:
    """Run a job that grows by `flexo scale`, and at the end gives way to another job."""
    job = submit(lab, endless(1, SIZES[0], SIZES[-1], ddp=ddp), folder / "resized")
    asked_at = _scale(lab, job, SIZES[0])
    _settle(job, SIZES[0], asked_at)
    _take_steps(job, SIZES[0], asked_at, samples)
    for before, after in pairwise(SIZES):
        asked_at = _scale(lab, job, after)
        _settle(job, after, asked_at)
        _take_growth(job, before, after, asked_at, samples)
        # flexod polls less often while no elastic job runs
        status = json.loads(lab.run(["flexo", "status", "--json"]).stdout)
        samples.look.append(float(status["interval_s"]))
    other = submit(lab, _rigid(2, lab.spec.nodes * lab.spec.gpus_per_node - SIZES[0]), folder / "other")
    wait_for_ends([other], BOUND_S)
    samples.gave_way.append(_began(other) - other.at)
    _settle(job, SIZES[0], other.at)
    samples.part.append(pause_s(job.log(), SIZES[0], other.at))
    lab.run(["scancel", str(job.job_id)])
    wait_for("the cancelled job is gone", BOUND_S, lambda: _queue_is_empty(lab))


def _queue_is_empty(lab: Lab) -> bool:
    return not lab.run(["squeue", "--noheader", "--format=%A"]).stdout.strip()


def _scale(lab: Lab, job: Submitted, workers: int) -> float:
    """Scale the job to `workers`, again until flexod knows the job. Returns the time of the request."""
    asked_at = 0.0

    def accepted() -> bool:
        nonlocal asked_at
        asked_at = time.time()
        return lab.run(["flexo", "scale", str(job.job_id), str(workers)], check=False).returncode == 0

    wait_for(f"flexo scale {workers}", BOUND_S, accepted)
    return asked_at


def _settle(job: Submitted, workers: int, since: float) -> None:
    wait_for(
        f"job trains with {workers} workers",
        BOUND_S,
        lambda: len(job.log().batches(workers, since)) > STEADY_BATCHES,
    )


def _take_steps(job: Submitted, workers: int, since: float, samples: Samples) -> None:
    done = job.log().batches(workers, since)
    samples.steps.setdefault(workers, []).extend(after - before for before, after in pairwise(done))


def _take_growth(job: Submitted, before: int, after: int, asked_at: float, samples: Samples) -> None:
    _take_steps(job, after, asked_at, samples)
    samples.join.append(pause_s(job.log(), after, asked_at))
    told = _trace(job.folder)
    granted = [line for line in told if line["event"] == "grant" and line["time"] > asked_at]
    ids = {line["grant"] for line in granted}
    submitted = [line for line in told if line["event"] == "submitted" and line["grant"] in ids]
    if len(granted) != 1 or not submitted:
        return  # the growth came in two grants, which gives no sample of one
    samples.granted.append(submitted[0]["time"] - granted[0]["time"])
    samples.joined.setdefault(after - before, []).append(_first(job, after, asked_at) - granted[0]["time"])


def _first(job: Submitted, workers: int, since: float) -> float:
    """Time of the job's first log line with this number of workers after `since`."""
    return next(line.at for line in job.log().lines if line.size == workers and line.at > since)


def pause_s(log: WorkerLog, after: int, since: float) -> float:
    """Seconds for which rank 0 stood still before its first step with `after` workers."""
    news = log.batches(after, since)
    last = max(line.at for line in log.lines if line.event == "batch" and line.at < news[0])
    step_s = median(later - earlier for earlier, later in pairwise(news))
    return max(0.0, news[0] - last - step_s)


def _trace(folder: Path) -> list[dict[str, Any]]:
    """Lines of the leader's trace; a torn last line is left out."""
    lines = (folder / TRACE).read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def line_through(found: dict[int, float]) -> StartTime:
    """Start time by number of workers: a line through the smallest and the largest measured number."""
    few, many = min(found), max(found)
    more_s = max(0.0, (found[many] - found[few]) / (many - few)) if many > few else 0.0
    return StartTime(max(0.0, found[few] - more_s * (few - 1)), more_s)


def _rigid(number: int, gpus: int) -> Job:
    return Job(number, 0.0, gpus, gpus, 0, _SHORT_S)


def _began(job: Submitted) -> float:
    at = job.began_at()
    assert at is not None
    return at


def _ended(job: Submitted) -> float:
    at = job.ended_at()
    assert at is not None
    return at


def _both(one: Any, other: Any) -> Any:
    """Join two lists of samples, or two dictionaries of lists."""
    if isinstance(one, list):
        return [*one, *other]
    return {key: [*one.get(key, []), *other.get(key, [])] for key in sorted(one.keys() | other.keys())}
