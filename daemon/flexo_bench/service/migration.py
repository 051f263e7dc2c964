"""Part `migration`: all tensors of a job that trains go from one set of servers to another (AutoPS, table 3).

`sum`: a job with real agents, whose sums two Aggregators of a pool make, is assigned two others. `resident`:
two parameter servers copy parameters and momentum to two others, as in the paper. The pause is the longest
gap between two steps after the migration began, less the median gap of the time before. The longest gap of
that time is written beside it: so much is due to the machine.
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

SUM, RESIDENT = WAYS = ("sum", "resident")
WORKERS = SERVERS = 2
SEED = 25
RUNS, QUICK_RUNS = 10, 2
"""Migrations of each job. The paper has ten, too."""
CALM_STEPS = 10
"""Steps before a migration, and after it."""
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
    print("\nmigration | runs | pause, worst | without a migration, worst | mini-batch, ms")
    with tempfile.TemporaryDirectory(prefix="bench-service-") as folder:
        for name, model in models.items():
            found[name] = {"model": asdict(model)}
            for way in WAYS:
                moved = _moved(way, model, runs, Path(folder, name), setting)
                found[name][way] = summary(moved)
                _show(f"{way}, {name}", found[name][way])
                if name == JUDGED:
                    pauses[way] = found[name][way]["pause_s"]
                    goals += goals_of(way, found[name][way])
                setting.keep({"migration_s": pauses, "migration": found})
    for goal in goals:
        print(goal_line(goal))
    return {"migration_s": pauses, "migration": found}


def summary(moved: Moved) -> dict[str, Any]:
    """The figures of one job."""
    pauses, calm = [cost.pause_s for cost in moved.costs], [cost.calm_s for cost in moved.costs]
    return {
        "runs": len(pauses),
        "pause_s": statistics.median(pauses),
        "pause_mean_s": statistics.mean(pauses),
        "pause_worst_s": max(pauses),
        "calm_s": statistics.median(calm),
        "calm_worst_s": max(calm),
        "mini_batch_s": statistics.median(cost.step_s for cost in moved.costs),
        "costs": [asdict(cost) for cost in moved.costs],
        **moved.facts,
    }


def goals_of(way: str, found: Mapping[str, Any]) -> list[Goal]:
    """The limit of the pause, and what must be zero."""
    batch_s = found["mini_batch_s"]
    most = batch_s if way == RESIDENT else max(LEAST_S, OF_A_BATCH * batch_s)
    goals = [Goal(f"migration_s.{way}", found["pause_s"], at_most=most)]
    for name in ("batches_lost", "samples_repeated", "disagreements"):
        if name in found:
            goals.append(Goal(f"migration.{way}.{name}", found[name], at_most=0))
    return goals


def _moved(way: str, model: Model, runs: int, folder: Path, setting: Setting) -> Moved:
    if way == SUM:
        return _sums_moved(model, runs, folder, setting)
    return _tensors_moved(model, runs, setting)


# --- sums -------------------------------------------------------------------------------------------------


def _sums_moved(model: Model, runs: int, folder: Path, setting: Setting) -> Moved:
    """The job uses the first set before the first migration; that assignment is not counted."""
    dice = random.Random(f"{SEED} {SUM}")
    done: list[Migration] = []
    with _pooled_job(model, folder) as (job, flexod, sets):
        _assign(job, flexod, sets[-1])
        for number in range(runs):
            calm = time.time()
            _wait_for_steps(job, calm)
            time.sleep(dice.uniform(0, 2 * model.step_s))
            began = time.time()
            _assign(job, flexod, sets[number % len(sets)])
            _wait_for_steps(job, time.time())
            done.append(Migration(calm, began, time.time()))
            setting.tell(f"migration: sums of {model.hidden}, {number + 1} of {runs}")
        lines = job.events()
    if why := irregular(lines):
        raise RuntimeError(why)
    ends = defaultdict(list)
    for line in lines:
        if line["event"] == "step":
            ends[line["rank"]].append(line["time"])
    judged = judge(lines, [], SAMPLES)
    facts = {
        "batches_lost": _begun_again(lines),
        "samples_repeated": judged.samples_repeated,
        "disagreements": judged.disagreements,
        "alike": all(len(those) == 1 for those in digests(lines).values()),
    }
    return Moved(tuple(cost_of(one, list(ends.values())) for one in done), facts)


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
    version = flexod.assign(aggregators)
    job.wait_until(f"sums by assignment {version}", lambda: flexod.version_in_use == version)


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


def _tensors_moved(model: Model, runs: int, setting: Setting) -> Moved:
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
            ends = [worker.answer() for worker in job.workers]
            costs.append(cost_of(Migration(calm, began, time.time()), ends))
            step_s = costs[-1].step_s
            setting.tell(f"migration: tensors of {model.hidden}, {number + 1} of {runs}")
    return Moved(tuple(costs), {"copied_after_s": copied_s})


# --- as text ----------------------------------------------------------------------------------------------


def _show(name: str, found: Mapping[str, Any]) -> None:
    columns = ("pause_s", "pause_worst_s"), ("calm_s", "calm_worst_s"), ("mini_batch_s",)
    texts = [", ".join(f"{1e3 * found[key]:.0f}" for key in keys) for keys in columns]
    print(f"  {name} | {found['runs']} | {' | '.join(texts)}", flush=True)
