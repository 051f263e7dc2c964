"""Part `sharing`: four jobs share at most three Aggregators, each of which has a core of its own in Slurm.

Everything is real: Slurm with slurmdbd, flexod with pMaster, pool Aggregators as Slurm jobs of flexod's
account, and elastic jobs whose compute is a timed sleep. First, each job has two Aggregators to itself, as
many as it would reserve. Then the same jobs share. By turns, all of them train, and each trains beside idle
neighbours. At last, a fifth job sends many times more than its profile says.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil

from flexo_bench.runtime import machine
from flexo_bench.runtime.results import Goal
from flexo_bench.service.ratios import goal_line
from flexo_bench.service.setting import Setting
from flexo_bench.service.sharing_judged import (
    Window,
    core_seconds,
    drains,
    job_loss,
    median_step,
    most_cores,
    neighbour_of_greedy,
    saved,
    steps_in,
    worst_loss,
)
from flexo_bench.service.sharing_lab import CORES, SharingFailed, SharingLab, Trainer, sharing_lab
from flexo_lab.processes import belonging_to

JOBS: Final = 4
SHARED_CORES: Final = 3
STEP_S: Final = 0.15
"""The timed sleep in each step."""
SAVED_AT_LEAST, LOSS_AT_MOST, CPU_AT_MOST = 0.5, 0.09, 0.6
PERIOD_S, DRAIN_AFTER_S, REST_S = 10.0, 30.0, 60.0
"""Keys of [aggregation]: shorter than by default, so that a run sees them act."""
PROBATION: Final = 100
"""[aggregation] undo_iterations: after these, no recent change explains what the greedy job does."""
MEASURED: Final = 50
"""So many more iterations, and a job is measured where it shares. Its profile may be estimated before."""
ACCOUNTS = [f"sharing{number + 1}" for number in range(JOBS + 1)]
GREEDY = "greedy"


@dataclass(frozen=True, slots=True)
class Plan:
    """The lengths of one run. Seconds."""

    dedicated_s: float
    rounds: int
    together_s: float
    alone_s: float
    calm_s: float
    """The time in which neighbours are watched after the greedy job has been reverted."""


FULL = Plan(dedicated_s=120, rounds=8, together_s=20, alone_s=10, calm_s=60)
QUICK = Plan(dedicated_s=15, rounds=2, together_s=8, alone_s=4, calm_s=15)
REVERTED_WITHIN_S: Final = 180.0
SETTLES_S: Final = 1.0
"""The time from a turn's begin until steps count."""


def measure(setting: Setting) -> dict[str, Any]:
    """Measure both, then the greedy job, and then how flexod ends Aggregators; see parts.Part."""
    plan = QUICK if setting.quick else FULL
    found: dict[str, Any] = {"machine": machine.facts(), "setting": _setting(plan)}
    with sharing_lab(ACCOUNTS, setting.tell) as cluster:
        try:
            for step in _steps(cluster, plan):
                found |= step
                setting.keep({"sharing": found})
        except SharingFailed as error:
            found["failed"] = str(error)
            found["events"] = cluster.events("aggregator", "assign", "revert")
            setting.tell(f"sharing: failed: {error}")
    _show(found)
    for goal in goals(found):
        print(goal_line(goal))
    return {"sharing": found}


def _steps(cluster: SharingLab, plan: Plan) -> Iterator[dict[str, Any]]:
    """Keys of the part, in the order in which they are measured. Raises SharingFailed."""
    dedicated = _dedicated(cluster, plan)
    yield {"dedicated": dedicated}
    cluster.configure(share='"all"', **_periods(drain_after_s=DRAIN_AFTER_S))
    jobs, coming = _started(cluster, SHARED_CORES)
    yield _shared(cluster, jobs, plan, dedicated, coming)
    yield {"greedy": _greedy(cluster, jobs, plan)}
    yield {"drains": _drains(cluster, jobs)}


def _setting(plan: Plan) -> dict[str, Any]:
    return {
        "jobs": JOBS,
        "cores_reserved_by_each": CORES,
        "step_s": STEP_S,
        "period_s": PERIOD_S,
        "drain_after_s": DRAIN_AFTER_S,
        "plan": asdict(plan),
    }


def _periods(drain_after_s: float) -> dict[str, str]:
    return {
        "period_s": str(PERIOD_S),
        "drain_after_s": str(drain_after_s),
        "rest_s": str(REST_S),
        "undo_iterations": str(PROBATION),
    }


# --- dedicated and shared ---------------------------------------------------------------------------------


def _dedicated(cluster: SharingLab, plan: Plan) -> dict[str, Any]:
    """Each job has the Aggregators to itself that it would reserve: flexod shares within accounts only."""
    cluster.configure(share='"account"', **_periods(drain_after_s=0))
    jobs, coming = _started(cluster, JOBS * CORES)
    cluster.tell(f"sharing: {JOBS} jobs with {CORES} Aggregators each train for {plan.dedicated_s:.0f} s")
    window = _window(plan.dedicated_s)
    steps = {job.name: steps_in(job.events("step"), [window]) for job in jobs}
    assigned = [event["text"] for event in cluster.events("assign", "revert")]
    cluster.end(jobs)
    cluster.end_aggregators()
    accounted = cluster.accounted()
    return {
        "core_seconds": core_seconds(accounted, [window]),
        "core_seconds_while_jobs_came": core_seconds(accounted, [coming]),
        "cores": most_cores(accounted, window),
        "steps": sum(map(len, steps.values())),
        "step_s": {name: median_step(durations) for name, durations in steps.items()},
        "aggregators": [asdict(each) for each in accounted],
        "assigned": assigned,
    }


def _started(cluster: SharingLab, aggregators: int) -> tuple[list[Trainer], Window]:
    """Four jobs, so many Aggregators for them, and the time from these until all jobs are profiled.

    The jobs come first: flexod ends Aggregators that no job needs.
    """
    jobs = [cluster.submit(f"job{n + 1}", ACCOUNTS[n], STEP_S) for n in range(JOBS)]
    for job in jobs:
        cluster.wait_until_it_trains(job)
    began = time.time()
    cluster.add_aggregators(aggregators)
    cluster.tell("sharing: waits until all jobs are profiled")
    cluster.wait_until_they_share(jobs)
    return jobs, Window(began, time.time())


def _shared(
    cluster: SharingLab, jobs: Sequence[Trainer], plan: Plan, dedicated: Mapping[str, Any], coming: Window
) -> dict[str, Any]:
    """All train, and then each beside idle neighbours, round by round."""
    together: list[Window] = []
    alone: dict[str, list[Window]] = {job.name: [] for job in jobs}
    cpu_s = 0.0
    for number in range(plan.rounds):
        cluster.tell(f"sharing: round {number + 1} of {plan.rounds}")
        before = _cpu_s(cluster)
        together.append(_window(plan.together_s))
        cpu_s += _cpu_s(cluster) - before
        for job in jobs:
            alone[job.name].append(_alone(job, jobs, plan.alone_s))
    losses = [job_loss(job.name, job.events("step"), together, alone[job.name]) for job in jobs]
    accounted = [each for each in cluster.accounted() if each.job_id not in _ids(dedicated)]
    shared: dict[str, Any] = {
        "core_seconds": core_seconds(accounted, together),
        "core_seconds_while_jobs_came": core_seconds(accounted, [coming]),
        "cores": max(most_cores(accounted, window) for window in together),
        "steps": sum(each.steps_together for each in losses),
        "jobs_that_share": sum(cluster.shares(job) for job in jobs),
        "reverts": [event["text"] for event in cluster.events("revert") if event["at"] >= coming.begin],
    }
    return {
        "core_seconds_saved": saved(
            shared["core_seconds"], shared["steps"], dedicated["core_seconds"], dedicated["steps"]
        ),
        "worst_loss": worst_loss(losses),
        "cpu_use": cpu_s / sum(each.end - each.begin for each in together) / (os.cpu_count() or 1),
        "losses": [asdict(each) | {"loss": each.loss} for each in losses],
        "shared": shared,
    }


def _ids(phase: Mapping[str, Any]) -> set[int]:
    return {each["job_id"] for each in phase["aggregators"]}


def _window(seconds: float) -> Window:
    """Let so much time pass; steps count a moment later."""
    time.sleep(SETTLES_S)
    began = time.time()
    time.sleep(seconds)
    return Window(began, time.time())


def _alone(job: Trainer, jobs: Sequence[Trainer], seconds: float) -> Window:
    others = [each for each in jobs if each is not job]
    for each in others:
        each.tell("hold")
    try:
        return _window(seconds)
    finally:
        for each in others:
            each.no_longer("hold")


def _cpu_s(cluster: SharingLab) -> float:
    """CPU seconds of all processes of the cluster and its jobs that live."""
    total = 0.0
    for process in belonging_to(cluster.lab.directory):
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue
        total += used.user + used.system
    return total


# --- the greedy job ---------------------------------------------------------------------------------------


def _greedy(cluster: SharingLab, neighbours: Sequence[Trainer], plan: Plan) -> dict[str, Any]:
    """A fifth job is profiled as one of the others, and becomes greedy after its probation.

    It is greedy until flexod reverts somebody. Later, its workers alone would hurt the others, where all
    processes share a machine's cores.
    """
    greedy = cluster.submit(GREEDY, ACCOUNTS[JOBS], STEP_S)
    cluster.tell("sharing: waits until the fifth job is profiled")
    cluster.wait_until_it_trains(greedy)
    cluster.wait_until_they_share([greedy])
    since = len(greedy.events("step"))
    cluster.wait_until("its probation", lambda: len(greedy.events("step")) > since + PROBATION + MEASURED)
    before = _window(plan.together_s)
    cluster.tell("sharing: the fifth job is greedy from now on")
    began = time.time()
    greedy.tell(GREEDY)
    with contextlib.suppress(SharingFailed):  # nobody is reverted, and the result says so
        cluster.wait_until("a revert", lambda: _reverts(cluster, began), REVERTED_WITHIN_S)
    greedy.no_longer(GREEDY)
    during = Window(began, time.time())
    after = _window(plan.calm_s)
    reverts = _reverts(cluster, began)
    names = {job.job_id: job.name for job in (*neighbours, greedy)}
    at = float(reverts[0]["at"]) if reverts else during.end
    found = {
        "reverted": [names.get(int(each["job_id"]), "") for each in reverts],
        "why": [each["text"] for each in reverts],
        "after_s": at - began,
        "after_iterations_of_it": len(steps_in(greedy.events("step"), [Window(began, at)])),
        "after_iterations_of_neighbours": max(
            len(steps_in(job.events("step"), [Window(began, at)])) for job in neighbours
        ),
        "neighbours": {
            job.name: asdict(neighbour_of_greedy(job.events("step"), before, during, after))
            for job in neighbours
        },
    }
    cluster.end([greedy])
    return found


def _reverts(cluster: SharingLab, since: float) -> list[dict[str, Any]]:
    return [event for event in cluster.events("revert") if float(event["at"]) >= since]


def _drains(cluster: SharingLab, jobs: Sequence[Trainer]) -> list[dict[str, Any]]:
    """flexod ends the Aggregators that no job needs: all of them, once the jobs have ended."""
    cluster.tell(f"sharing: the jobs end, and flexod ends their Aggregators after {DRAIN_AFTER_S:.0f} s")
    cluster.end(jobs)
    cluster.wait_until_aggregators_have_ended()
    return [asdict(each) for each in drains(cluster.events("aggregator"), cluster.accounted())]


# --- as text ----------------------------------------------------------------------------------------------


def _show(found: Mapping[str, Any]) -> None:
    print("\nsharing | Aggregator cores | core-seconds | steps")
    for name in ("dedicated", "shared"):
        if phase := found.get(name):
            print(f"  {name} | {phase['cores']} | {phase['core_seconds']:.0f} | {phase['steps']}")
    for each in found.get("losses", ()):
        steps = f"{_ms(each['together_s'])} ms beside the others, {_ms(each['alone_s'])} ms beside idle ones"
        print(f"  {each['name']} | {steps} | loses {_percent(each['loss'])}")
    if greedy := found.get("greedy"):
        neighbours = greedy["after_iterations_of_neighbours"]
        print(
            f"  greedy | reverted: {', '.join(greedy['reverted'])} | after {neighbours} of neighbours' steps"
        )
        for name, steps in greedy["neighbours"].items():
            losses = f"{_percent(steps['loss_during'])} during, {_percent(steps['loss_after'])} after"
            print(f"    {name} | {_ms(steps['before_s'])} ms before | loses {losses}")
    for each in found.get("drains", ()):
        print(f"  ended by flexod | Slurm job {each['slurm_job']} | {each['state']}")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"


def goals(found: Mapping[str, Any]) -> list[Goal]:
    """The goals of the part, beside what was measured."""
    greedy, shared = found.get("greedy"), found.get("shared", {})
    only_greedy = None if greedy is None else float(greedy["reverted"] == [GREEDY])
    return [
        Goal("sharing.core_seconds_saved", found.get("core_seconds_saved"), at_least=SAVED_AT_LEAST),
        Goal("sharing.worst_loss", found.get("worst_loss"), at_most=LOSS_AT_MOST),
        Goal("sharing.cpu_use", found.get("cpu_use"), at_most=CPU_AT_MOST),
        Goal("sharing.shared.jobs_that_share", shared.get("jobs_that_share"), at_least=JOBS),
        Goal("sharing.shared.cores", shared.get("cores"), at_most=SHARED_CORES),
        Goal("sharing.greedy: only the greedy job is reverted", only_greedy, at_least=1),
    ]
