"""Part `standalone`: one job on balanced servers, and on servers that are filled as by ps-lite (figure 7).

AutoPS gains up to 1.17 times there, by better balance than "the round-robin distribution in ps-lite". The
paper does not say what goes round. Here it is either whole tensors or partitions. Everything else is the same
in all jobs, so the gain is that of balance alone. Compute and aggregation times are timed (small_models.py).
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from flexo.aggregation.assignment import assign
from flexo.aggregation.demand import JobDemand
from flexo.aggregation.pool import SECOND, AggregatorPool, AssignmentLimits
from flexo_bench.ranks import Cluster, each
from flexo_bench.runtime import machine
from flexo_bench.service.philly_jobs import AGGREGATOR, MODELS, Model
from flexo_bench.service.ratios import Ratio, ratio_of_medians
from flexo_bench.service.resident.job import NAME, Plan, join, leave, servers, train
from flexo_bench.service.resident.partitions import busiest_share, round_robin
from flexo_bench.service.resident.pool_master import holders_in, tasks_of
from flexo_bench.service.setting import Setting
from flexo_bench.service.small_models import SCALE, SERVERS, WORKERS, compute_s, plan_of
from horovod_elastic.core.choice import TORCH

BALANCED, PARTITIONS, TENSORS = WAYS = ("balanced", "round_robin_partitions", "round_robin_tensors")
ROUNDS, QUICK_ROUNDS = 10, 2
ITERATIONS: Final = 6
"""Iterations in a turn. The gaps between them count."""
WARM: Final = 3
PRINTED: Final = {"least": 1.0, "most": 1.17}
"""The figure itself is not in the text."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A job, and the server of each of its partitions."""

    plan: Plan
    holders: Sequence[int]


def measure(setting: Setting) -> dict[str, Any]:
    """Train each model in all ways by turns; see parts.Part."""
    models = MODELS[:1] if setting.quick else MODELS
    found: dict[str, Any] = {"machine": machine.facts(), "printed": PRINTED, "scale": SCALE, "models": {}}
    print(f"\nspeed over round-robin of whole tensors, of partitions; printed: 1 to {PRINTED['most']}")
    for model in models:
        jobs = placed(model)
        seconds = _turns(model, jobs, QUICK_ROUNDS if setting.quick else ROUNDS, setting)
        gains = {way: ratio_of_medians(seconds[way], seconds[BALANCED]) for way in (TENSORS, PARTITIONS)}
        found["models"][model.name] = {
            "iteration_s": {way: statistics.median(seconds[way]) for way in WAYS},
            "busiest_share": {
                way: busiest_share(job.plan.partitions, job.holders) for way, job in jobs.items()
            },
            "gain": {way: asdict(gain) for way, gain in gains.items()},
            "rounds": seconds,
        }
        _show(model, gains)
        setting.keep({"standalone": found})
    return {"standalone": found}


def placed(model: Model) -> dict[str, Placed]:
    """The job of a model in each way. Only the balanced one is assigned as by pMaster."""
    ours, theirs = plan_of(model, 1), plan_of(model, 2)
    whole = plan_of(model, 3, whole_tensors=True)
    demand = JobDemand("1", round(model.duration_s * SECOND), WORKERS, tasks_of(ours), SERVERS)
    pool = assign(AggregatorPool(AGGREGATOR), demand, AssignmentLimits())
    assert pool is not None, "without a limit of new Aggregators, every job is assigned"
    return {
        BALANCED: Placed(ours, holders_in(pool, demand.job)),
        PARTITIONS: Placed(theirs, round_robin(theirs.partitions, SERVERS)),
        TENSORS: Placed(whole, round_robin(whole.partitions, SERVERS)),
    }


def _turns(model: Model, jobs: dict[str, Placed], rounds: int, setting: Setting) -> dict[str, list[float]]:
    """Seconds of an iteration, by way and turn. The jobs share two servers, and only one trains at a time."""
    cluster = Cluster(TORCH)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        _, addresses = stack.enter_context(servers(range(SERVERS)))
        workers = cluster.start(WORKERS, node=NAME)
        cluster.form(workers)
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for job in jobs.values():
            each(workers, join, job.plan, addresses, job.holders)
            each(workers, train, WARM, 0.0, job.plan.number)
        for number in range(rounds):
            first = number % len(WAYS)
            for way in (*WAYS[first:], *WAYS[:first]):
                ends = each(workers, train, ITERATIONS, compute_s(model), jobs[way].plan.number)
                seconds[way].append((ends[0][-1] - ends[0][0]) / (ITERATIONS - 1))
            latest = ", ".join(f"{way} {1e3 * seconds[way][-1]:.0f}" for way in WAYS)
            setting.tell(f"standalone: {model.name}, round {number + 1} of {rounds}, ms: {latest}")
        for job in jobs.values():
            each(workers, leave, job.plan.number)
    return seconds


def _show(model: Model, gains: dict[str, Ratio]) -> None:
    print(f"  {model.name} | {gains[TENSORS]} | {gains[PARTITIONS]}", flush=True)
