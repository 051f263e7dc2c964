"""Part `migration`: all tensors of a job that trains go from one set of servers to another (AutoPS, table 3).

`sum`: a job with real agents, whose sums two Aggregators of a pool make, is assigned two others. `resize`:
the same job goes to a new generation, in turns with that. So it did for each assignment once, and so it does
for each change of its size. `resident`: two parameter servers copy parameters and momentum to two others, as
in the paper. What is judged is the longest mini-batch of a migration against the longest of as many
mini-batches of the same job just before (migration_judged.py).
"""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from flexo_bench.local_job.assigning import AssigningFlexod, assigning_flexod, variables_of
from flexo_bench.local_job.job import BASE, LocalJob, local_job
from flexo_bench.local_job.pool import pool_aggregator
from flexo_bench.ranks import each
from flexo_bench.runtime import machine
from flexo_bench.runtime.results import Goal
from flexo_bench.service.kills import SAMPLES, SCRIPT
from flexo_bench.service.kills_judged import digests, irregular, judge
from flexo_bench.service.migration_judged import Cost, Migration, cost_of
from flexo_bench.service.ratios import goal_line
from flexo_bench.service.resident.job import resident_job, train
from flexo_bench.service.setting import Setting
from horovod_elastic.aggregation.control import AssignedAggregator
from horovod_elastic.core import choice

SUM, RESIZE, RESIDENT = WAYS = ("sum", "resize", "resident")
WORKERS = SERVERS = 2
SEED = 25
RUNS, QUICK_RUNS = 10, 3
"""Migrations of each job. The paper has ten, too."""
CALM_STEPS = 10
"""Steps before a migration, and after it."""
MIGRATED = "sums are made at "
"""What rank 0's Aggregator says at the instant at which sums have migrated."""
LEFT_OUT = "the Aggregator at "
"""What a node says of an Aggregator that it does not use any more: then the sums have not migrated there."""
LOOK_S, BOUND_S = 0.005, 60.0
LEAST_S, OF_A_BATCH = 0.025, 0.1
"""A migration of sums may pause a job for the larger one."""


@dataclass(frozen=True, slots=True)
class Model:
    """A perceptron of train_kills.py. `step_s`: what a step sleeps instead of computing."""

    hidden: int
    step_s: float

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of its parameters."""
        wide = self.hidden
        return [(wide, 1), (wide,), (wide, wide), (wide,), (1, wide), (1,), (SAMPLES,)]


MODELS: Final[Mapping[str, Model]] = {"small": Model(1000, 0.1), "large": Model(3400, 0.3)}
"""Of 1.0 and 11.6 million parameters."""
JUDGED = "large"
"""The model by which the goals are judged; about as large as that of part `comm`."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The migrations of one job."""

    costs: tuple[Cost, ...]
    facts: Mapping[str, Any]
    """What else is written about the job."""


def measure(setting: Setting) -> dict[str, Any]:
    """Migrate both ways, with each model; see parts.Part."""
    runs = QUICK_RUNS if setting.quick else RUNS
    models = {JUDGED: MODELS[JUDGED]} if setting.quick else MODELS
    found: dict[str, Any] = {"seed": SEED, "machine": machine.facts(), "judged": JUDGED}
    pauses: dict[str, float] = {}
    goals: list[Goal] = []
    print("\nmigration | runs | added, worst | longest, without a migration | mini-batch, ms")
    with tempfile.TemporaryDirectory(prefix="bench-service-") as folder:
        for name, model in models.items():
            found[name] = {"model": asdict(model)}
            for moved_by in (_sums_moved, _tensors_moved):
                for way, moved in moved_by(model, runs, Path(folder, name), setting).items():
                    found[name][way] = summary(moved)
                    _show(f"{way}, {name}", found[name][way])
                    if name == JUDGED:
                        pauses[way] = found[name][way]["added_s"]
                        goals += goals_of(way, found[name][way])
                setting.keep({"migration_s": pauses, "migration": found})
    for goal in goals:
        print(goal_line(goal))
    return {"migration_s": pauses, "migration": found}


def summary(moved: Moved) -> dict[str, Any]:
    """The figures of one job."""
    added = [cost.added_s for cost in moved.costs]
    return {
        "runs": len(added),
        "added_s": statistics.median(added),
        "added_mean_s": statistics.mean(added),
        "added_worst_s": max(added),
        "pause_s": statistics.median(cost.pause_s for cost in moved.costs),
        "calm_s": statistics.median(cost.calm_s for cost in moved.costs),
        "mini_batch_s": statistics.median(cost.step_s for cost in moved.costs),
        "costs": [asdict(cost) for cost in moved.costs],
        **moved.facts,
    }


def goals_of(way: str, found: Mapping[str, Any]) -> list[Goal]:
    """The limit of what a migration adds, and what must be zero. A resize is the rival, and has no goal."""
    if way == RESIZE:
        return []
    batch_s = found["mini_batch_s"]
    most = batch_s if way == RESIDENT else max(LEAST_S, OF_A_BATCH * batch_s)
    goals = [Goal(f"migration_s.{way}", found["added_s"], at_most=most)]
    for name in ("left_out", "batches_lost", "samples_repeated", "disagreements"):
        if name in found:
            goals.append(Goal(f"migration.{way}.{name}", found[name], at_most=0))
    return goals


# --- sums -------------------------------------------------------------------------------------------------


def _sums_moved(model: Model, runs: int, folder: Path, setting: Setting) -> dict[str, Moved]:
    """Migrations and resizes in turns. The job uses one set before the first; that is not counted.

    An assignment of Aggregators that the job uses already takes a new generation.
    """
    dice = random.Random(f"{SEED} {SUM}")
    done: dict[str, list[Migration]] = {SUM: [], RESIZE: []}
    with _pooled_job(model, folder) as (job, flexod, sets):
        _assign(job, flexod, sets[-1])
        for number in range(runs):
            for way, moves in done.items():
                calm = time.time()
                _wait_for_steps(job, calm)
                time.sleep(dice.uniform(0, 2 * model.step_s))
                began, before = time.time(), job.output().count(MIGRATED)
                version = flexod.assign(sets[number % len(sets)])
                until = _migrated(job, before) if way == SUM else _resized(job, began)
                _wait_until_used(job, flexod, version)
                _wait_for_steps(job, time.time())
                moves.append(Migration(calm, began, until))
            setting.tell(f"migration: sums of {model.hidden}, {number + 1} of {runs}")
        lines, left_out = job.events(), job.output().count(LEFT_OUT)
    if why := irregular(lines):
        raise RuntimeError(why)
    ends = defaultdict(list)
    for line in lines:
        if line["event"] == "step":
            ends[line["rank"]].append(line["time"])
    judged = judge(lines, [], SAMPLES)
    facts = {
        "left_out": left_out,
        "batches_lost": _begun_again(lines),
        "samples_repeated": judged.samples_repeated,
        "disagreements": judged.disagreements,
        "alike": all(len(those) == 1 for those in digests(lines).values()),
    }
    return {
        way: Moved(tuple(cost_of(one, list(ends.values())) for one in moves), facts)
        for way, moves in done.items()
    }


@contextlib.contextmanager
def _pooled_job(
    model: Model, folder: Path
) -> Iterator[tuple[LocalJob, AssigningFlexod, list[list[AssignedAggregator]]]]:
    """The job, flexod's stand-in, and two sets of a pool's Aggregators."""
    how = ["--by-rank", "--hidden", str(model.hidden), "--step-seconds", str(model.step_s)]
    how += ["--samples", str(SAMPLES), "--commit-every", str(10**9)]
    with contextlib.ExitStack() as stack:
        flexod = stack.enter_context(assigning_flexod())
        sets: list[list[AssignedAggregator]] = [
            [
                stack.enter_context(pool_aggregator(folder / f"pool-{which}-{number}", str(BASE)))[1]
                for number in range(SERVERS)
            ]
            for which in range(2)
        ]
        variables = {
            **variables_of(folder),
            choice.VARIABLE: choice.SERVICE,
            choice.AGGREGATORS_VARIABLE: choice.POOL,
        }
        nodes = {"workers": WORKERS - 1, "second": 1}
        started = local_job(folder / "job", SCRIPT, *how, daemon=flexod.address, **nodes, **variables)  # type: ignore[arg-type]
        yield stack.enter_context(started), flexod, sets


def _assign(job: LocalJob, flexod: AssigningFlexod, aggregators: Sequence[AssignedAggregator]) -> None:
    """Have these sum the job's gradients, and wait until its leader says so."""
    _wait_until_used(job, flexod, flexod.assign(aggregators))


def _wait_until_used(job: LocalJob, flexod: AssigningFlexod, version: int) -> None:
    job.wait_until(f"sums by assignment {version}", lambda: flexod.version_in_use == version)


def _migrated(job: LocalJob, before: int) -> float:
    """The instant at which the sums have migrated once more than `before`. Raises TimeoutError."""
    limit = time.time() + BOUND_S
    while job.output().count(MIGRATED) <= before:
        if time.time() > limit:
            raise TimeoutError(f"the sums have not migrated:\n{job.output()[-6000:]}")
        time.sleep(LOOK_S)
    return time.time()


def _resized(job: LocalJob, began: float) -> float:
    """The instant at which all workers have entered the next generation."""

    def entered() -> list[float]:
        return [event["time"] for event in job.events("enter") if event["time"] > began]

    job.wait_until("the next generation", lambda: len(entered()) == WORKERS)
    return max(entered())


def _wait_for_steps(job: LocalJob, since: float) -> None:
    """Until every worker has taken CALM_STEPS steps since then."""

    def taken() -> bool:
        ranks = [event["rank"] for event in job.events("step") if event["time"] > since]
        return all(ranks.count(rank) >= CALM_STEPS for rank in range(WORKERS))

    job.wait_until(f"{CALM_STEPS} steps", taken)


def _begun_again(lines: Sequence[Mapping[str, Any]]) -> int:
    """How many mini-batches a worker has begun more than once."""
    begun = [(line["pid"], line["step"]) for line in lines if line["event"] == "begin"]
    return len(begun) - len(set(begun))


# --- resident mode ----------------------------------------------------------------------------------------


def _tensors_moved(model: Model, runs: int, folder: Path, setting: Setting) -> dict[str, Moved]:
    """All partitions go to the other servers, and back with the next migration."""
    dice = random.Random(f"{SEED} {RESIDENT}")
    costs: list[Cost] = []
    copied_s: list[float] = []
    with resident_job(WORKERS, SERVERS, model.shapes, spare=SERVERS) as job:
        ends = each(job.workers, train, CALM_STEPS, model.step_s)
        step_s = (ends[0][-1] - ends[0][0]) / (CALM_STEPS - 1)
        for number in range(runs):
            for worker in job.workers:
                worker.begin(train, 2 * CALM_STEPS + 2, model.step_s)
            calm = time.time()
            time.sleep(step_s * (CALM_STEPS + dice.uniform(0, 2)))
            began = time.time()
            copied_s.append(job.mover.move([(old + SERVERS) % (2 * SERVERS) for old in job.mover.holders]))
            until = time.time()
            ends = [worker.answer() for worker in job.workers]
            costs.append(cost_of(Migration(calm, began, until), ends))
            step_s = costs[-1].step_s
            setting.tell(f"migration: tensors of {model.hidden}, {number + 1} of {runs}")
    return {RESIDENT: Moved(tuple(costs), {"copied_after_s": copied_s})}


# --- as text ----------------------------------------------------------------------------------------------


def _show(name: str, found: Mapping[str, Any]) -> None:
    columns = ("added_s", "added_worst_s"), ("pause_s", "calm_s"), ("mini_batch_s",)
    texts = [", ".join(f"{1e3 * found[key]:.0f}" for key in keys) for keys in columns]
    print(f"  {name} | {found['runs']} | {' | '.join(texts)}", flush=True)
