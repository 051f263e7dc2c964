"""Part `case_study`: an AlexNet job joins a VGG19 job on its parameter servers, and leaves again (figure 10).

As in the paper, the AlexNet job is profiled on temporary servers. Then pMaster moves it to those of the VGG19
job. After 100 iterations, pMaster undoes that if the job loses too much: it adds a server and spreads the job
over all three. The third server is released when the job ends. All servers have been started before. Compute
and aggregation times are timed (small_models.py); transport, updates, slots and moves are real.

A neighbour can delay a job by its own aggregation times at most. With those that are assumed, that is less
than the printed loss. So there are two cases: in the second one, shared cores are slower for the AlexNet job.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from flexo.aggregation.demand import JobDemand
from flexo.aggregation.pool import SECOND
from flexo.aggregation.profiling import WARM_UP, deal
from flexo_bench.ranks import Cluster, each
from flexo_bench.runtime import machine
from flexo_bench.service import case_study_picture
from flexo_bench.service.case_study_judged import Stage, loss_in, trace
from flexo_bench.service.resident.client import Address
from flexo_bench.service.resident.job import NAME, Mover, Plan, join, servers
from flexo_bench.service.resident.partitions import BYTES
from flexo_bench.service.resident.pool_master import PoolMaster, profiled
from flexo_bench.service.resident.trainer import Trainer
from flexo_bench.service.setting import Setting
from flexo_bench.service.small_models import MODEL, SCALE, SERVERS, WORKERS, compute_s, plan_of
from horovod_elastic.core.choice import TORCH

VGG19: Final = replace(MODEL["VGG19"], duration_s=0.65)
"""Its iterations are 3.2 times as long as the other job's. With 0.6 s, which are assumed elsewhere, they may
be a little less than 3 times as long. Then cyclic execution would cost the other job a third of its speed,
and pMaster would not even try."""
ALEXNET: Final = MODEL["AlexNet"]
STABLE, ADDED, TEMPORARY = (0, 1), (2,), (3, 4)
"""Servers of the VGG19 job, the one that is added, and those on which the other job is profiled."""
PRINTED_S: Final = {"together": 11, "apart": 27, "after": 42}
"""When the stages begin, in seconds."""
PRINTED_AGGREGATORS: Final = {"before": 2, "together": 2, "apart": 3, "after": 2}
PRINTED_LOSS: Final = 0.22
"""What the AlexNet job loses at most, together with the other one."""
CASES: Final = {"as_profiled": 1.0, "contended": 1.5}
"""How many times longer the AlexNet job's aggregation takes on shared servers. No profile knows it. The 1.5
is chosen: with it, the job loses about what is printed."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Iterations. `before` and `after` are those of the VGG19 job."""

    vgg19_profile: int
    alexnet_profile: int
    before: int
    together: int
    apart: int
    after: int


FULL = Lengths(vgg19_profile=50, alexnet_profile=100, before=20, together=100, apart=75, after=13)
QUICK = Lengths(vgg19_profile=8, alexnet_profile=30, before=5, together=30, apart=15, after=5)


def measure(setting: Setting) -> dict[str, Any]:
    """Measure both cases, and draw them; see parts.Part."""
    found: dict[str, Any] = {"machine": machine.facts(), "scale": SCALE, "contention": CASES, "cases": {}}
    lengths = QUICK if setting.quick else FULL
    for name, contention in CASES.items():
        with contextlib.ExitStack() as stack:
            _, addresses = stack.enter_context(servers(range(len((*STABLE, *ADDED, *TEMPORARY)))))
            plans = plan_of(VGG19, 1), plan_of(ALEXNET, 2, contention=contention)
            vgg19 = stack.enter_context(_training(plans[0], compute_s(VGG19), addresses, STABLE))
            alexnet = stack.enter_context(_training(plans[1], compute_s(ALEXNET), addresses, TEMPORARY))
            found["cases"][name] = _case(vgg19, alexnet, addresses, lengths, setting)
        _show(name, found["cases"][name])
        setting.keep({"case_study": found})
    case_study_picture.draw(found["cases"], setting.build / "service-case-study.png")
    return {"case_study": found}


@contextlib.contextmanager
def _training(
    plan: Plan, compute_s: float, addresses: Sequence[Address], there: Sequence[int]
) -> Iterator[Trainer]:
    """A job that trains, with its partitions on servers of its own."""
    cluster = Cluster(TORCH)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        workers = cluster.start(WORKERS, node=f"{NAME}-{plan.number}")
        cluster.form(workers)
        holders = dealt(plan, there)
        each(workers, join, plan, addresses, holders)
        job = Trainer(plan, workers, compute_s, Mover(addresses, holders, plan.number))
        with job.training():
            yield job


def dealt(plan: Plan, there: Sequence[int]) -> list[int]:
    """The server of each partition of a job that is not profiled yet."""
    sizes = {str(key): BYTES * part.count for key, part in enumerate(plan.partitions)}
    server_of: dict[str, int] = {}
    for server, keys in zip(there, deal(sizes, len(there)), strict=True):
        server_of |= dict.fromkeys(keys, server)
    return [server_of[key] for key in sizes]


def _case(
    vgg19: Trainer, alexnet: Trainer, addresses: Sequence[Address], lengths: Lengths, setting: Setting
) -> dict[str, Any]:
    jobs = {VGG19.name: vgg19, ALEXNET.name: alexnet}
    master = PoolMaster(addresses, {job.name: job.mover for job in jobs.values()})
    stages: list[Stage] = []

    def stage(name: str, change: Callable[[], object], job: Trainer, iterations: int) -> Stage:
        asked = time.time()
        change()
        since = time.time()
        job.train_on(iterations)
        stages.append(Stage(name, asked, since, time.time(), len(master.pool.aggregators)))
        setting.tell(f"case_study: {name}: {stages[-1].aggregators} Aggregators")
        return stages[-1]

    demands = [_demand(vgg19, lengths.vgg19_profile), _demand(alexnet, lengths.alexnet_profile)]
    alone_s = {name: statistics.mean(job.gaps_s[WARM_UP:]) for name, job in jobs.items()}
    stage("before", lambda: master.arrive(demands[0]), vgg19, lengths.before)
    together = stage("together", lambda: master.arrive(demands[1]), alexnet, lengths.together)
    predicted = float(master.pool.loss(alexnet.name))
    lost = loss_in(together, alexnet.ends, alone_s[ALEXNET.name])
    if undone := lost >= master.rules.limits.loss:
        stage("apart", lambda: master.undo(alexnet.name), alexnet, lengths.apart)
    alexnet.stop()
    stage("after", lambda: master.leave(alexnet.name), vgg19, lengths.after)
    origin = together.asked - PRINTED_S["together"]
    return {"predicted_loss": predicted, "undone": undone, **_figures(jobs, alone_s, stages, origin)}


def _demand(job: Trainer, iterations: int) -> JobDemand:
    """The profile of a job that trains on servers of its own."""
    job.train_on(max(0, 1 + WARM_UP + iterations - len(job.ends)))
    durations_ns = [round(SECOND * gap_s) for gap_s in job.gaps_s]
    return profiled(job.plan, WORKERS, SERVERS, durations_ns, WARM_UP)


def _figures(
    jobs: Mapping[str, Trainer], alone_s: Mapping[str, float], stages: Sequence[Stage], origin: float
) -> dict[str, Any]:
    """The figures of the part. Seconds count from the origin."""
    return {
        "jobs": {
            name: {
                "alone_s": alone_s[name],
                "loss": {
                    stage.name: loss_in(stage, job.ends, alone_s[name])
                    for stage in stages
                    if name == VGG19.name or stage.name in ("together", "apart")
                },
                "trace": [asdict(point) for point in trace(job.ends, origin, alone_s[name])],
            }
            for name, job in jobs.items()
        },
        "stages": [
            {
                "name": stage.name,
                "at_s": stage.asked - origin,
                "moved_after_s": stage.since - stage.asked,
                "until_s": stage.until - origin,
                "aggregators": stage.aggregators,
            }
            for stage in stages
        ],
    }


def _show(case: str, found: Mapping[str, Any]) -> None:
    print(f"\ncase study, {case} | begins at, s, printed | Aggregators, printed | loss of each job")
    for stage in found["stages"]:
        name = stage["name"]
        losses = [
            f"{job} {100 * figures['loss'][name]:.1f}%"
            for job, figures in found["jobs"].items()
            if name in figures["loss"]
        ]
        printed = f"{PRINTED_S.get(name, '-')}", f"{PRINTED_AGGREGATORS[name]}"
        print(
            f"  {name} | {stage['at_s']:.0f}, {printed[0]} | {stage['aggregators']}, {printed[1]}"
            f" | {', '.join(losses)}"
        )
    predicted = f"cyclic execution predicts {100 * found['predicted_loss']:.1f}%"
    print(f"  together, {ALEXNET.name}: {predicted}; printed: up to {100 * PRINTED_LOSS:.0f}%", flush=True)
