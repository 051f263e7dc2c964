"""Part `kills`: Aggregators and workers of an elastic job that are killed without warning, at any instant.

The job has real agents: two workers on one node and one on another, an Aggregator on each. It trains with
Horovod's API, and another one (`ddp`) with DistributedDataParallel. The rival is the first job on the torch
core. Which instants, is drawn from a seed that is written down.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flexo_bench.local_job.job import JobFailed, LocalJob, local_job
from flexo_bench.runtime import machine
from flexo_bench.runtime.results import Goal
from flexo_bench.service.kills_judged import Judged, Kill, digests, irregular, judge
from flexo_bench.service.ratios import goal_line
from flexo_bench.service.setting import Setting
from horovod_elastic.core.choice import SERVICE, TORCH

FOLDER = Path(__file__).resolve().parent
SCRIPT, DDP_SCRIPT = FOLDER / "train_kills.py", FOLDER / "train_kills_ddp.py"
SEED = 25
SAMPLES = 1200
WORKERS, ON_SECOND = 3, 1
KILLS, QUICK_KILLS = 20, 1
"""Deaths of each kind."""
A_JOB = 3
"""Deaths in one job. The leader starts a worker in the same place three times, and then no more."""
WAIT_S = (0.3, 1.6)
"""The time from a job that trains undisturbed to the next death is drawn between these."""
SETTLED_STEPS = 5
"""So many steps of all workers after a death, the job trains undisturbed."""
AGGREGATOR, WORKER, TORCH_CORE, DDP = "aggregator", "worker", "torch_core", "ddp"


@dataclass(frozen=True, slots=True)
class Case:
    """What dies in which job. `keys`: of its figures, one inside the other."""

    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        """The keys as words."""
        return " ".join(self.keys)

    @property
    def kills_aggregators(self) -> bool:
        """Whether Aggregators die, and not workers."""
        return self.keys[-1] == AGGREGATOR

    @property
    def core(self) -> str:
        """The core that the job trains with."""
        return TORCH if self.keys[-1] == TORCH_CORE else SERVICE

    @property
    def is_ddp(self) -> bool:
        """Whether the script is one with DistributedDataParallel."""
        return self.keys[0] == DDP


CASES = tuple(map(Case, ((AGGREGATOR,), (WORKER,), (TORCH_CORE,), (DDP, AGGREGATOR), (DDP, WORKER))))


@dataclass(frozen=True, slots=True)
class Killed:
    """One job and the deaths in it. `failed`: why it did not go on after the last one."""

    kills: tuple[Kill, ...]
    judged: Judged
    lines: tuple[Mapping[str, Any], ...]
    failed: str = ""


def measure(setting: Setting) -> dict[str, Any]:
    """Kill Aggregators and workers of each job; see parts.Part."""
    found: dict[str, Any] = {"seed": SEED, "machine": machine.facts(), DDP: {}}
    shares = deaths_of_jobs(QUICK_KILLS if setting.quick else KILLS)
    goals: list[Goal] = []
    print("\nkills | runs | mini-batches lost | samples repeated, missing | pause, worst | mini-batch")
    with tempfile.TemporaryDirectory(prefix="bench-service-") as folder:
        for case in CASES:
            done = [
                _job(case, number, kills, Path(folder, *case.keys), setting)
                for number, kills in enumerate(shares)
            ]
            figures = summary(done)
            if case.kills_aggregators:
                undisturbed = Path(folder, *case.keys, "undisturbed")
                figures |= _compared_with_undisturbed(case, done, undisturbed, setting)
            (found[DDP] if case.is_ddp else found)[case.keys[-1]] = figures
            _show(case.name, figures)
            goals += _goals(case, figures)
            setting.keep({"kills": found})
    for goal in goals:
        print(goal_line(goal))
    return {"kills": found}


def deaths_of_jobs(deaths: int) -> list[int]:
    """How many processes are killed in each job."""
    return [min(A_JOB, deaths - before) for before in range(0, deaths, A_JOB)]


def summary(jobs: Sequence[Killed]) -> dict[str, Any]:
    """The figures of all deaths of one kind."""
    costs = [cost for job in jobs for cost in job.judged.costs]
    pauses = [cost.pause_s for cost in costs]
    return {
        "runs": len(costs),
        "batches_lost": sum(cost.batches_lost for cost in costs),
        "samples_repeated": sum(job.judged.samples_repeated for job in jobs),
        "samples_filled_up": sum(job.judged.samples_filled_up for job in jobs),
        "samples_missing": sum(job.judged.samples_missing for job in jobs),
        "disagreements": sum(job.judged.disagreements for job in jobs),
        "pause_s": statistics.median(pauses) if pauses else None,
        "pause_worst_s": max(pauses, default=None),
        "later_worst_s": max((cost.later_s for cost in costs), default=None),
        "mini_batch_s": statistics.median(cost.step_s for cost in costs) if costs else None,
        "failed": [job.failed for job in jobs if job.failed],
        "kills": [[asdict(kill) for kill in job.kills] for job in jobs],
        "costs": [[asdict(cost) for cost in job.judged.costs] for job in jobs],
    }


def same_bits(killed: Sequence[Mapping[int, set[str]]], undisturbed: Mapping[int, set[str]]) -> bool:
    """Whether all workers of all these jobs had the undisturbed job's parameters after each step."""
    return all(
        undisturbed.get(step) == those and len(those) == 1 for job in killed for step, those in job.items()
    )


# --- jobs -------------------------------------------------------------------------------------------------


def _job(case: Case, number: int, kills: int, folder: Path, setting: Setting) -> Killed:
    """One job, in which that kind of process is killed so often."""
    dice = random.Random(f"{SEED} {case.name} {number}")
    kill = _kill_aggregator if case.kills_aggregators else _kill_worker
    done: list[Kill] = []
    failed = ""
    with _started(folder / str(number), case) as job:
        try:
            _wait_until_settled(job, done)
            for _ in range(kills):
                time.sleep(dice.uniform(*WAIT_S))
                done.append(kill(job, dice, done))
                _wait_until_settled(job, done)
                setting.tell(f"kills: {case.name}, job {number + 1}: {done[-1].what} killed, the job goes on")
        except JobFailed as error:
            failed = str(error)
        lines = tuple(job.events())
        failed = failed or irregular(lines)
        if failed:
            setting.tell(f"kills: {case.name}, job {number + 1} failed: {failed}")
            kept = setting.build / "service-kills" / f"{case.name}-{number + 1}".replace(" ", "-")
            shutil.copytree(job.folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("aggregator"))
            setting.tell(f"kills: its logs are in {kept}")
    judged = judge(lines, done, SAMPLES, fills_up=case.is_ddp)
    return Killed(tuple(done), judged, lines, failed)


@contextlib.contextmanager
def _started(folder: Path, case: Case, *options: str) -> Iterator[LocalJob]:
    by_rank = ["--by-rank"] if case.kills_aggregators and not case.is_ddp else []
    how = ["--samples", str(SAMPLES), *by_rank, *options]
    script, on_first = DDP_SCRIPT if case.is_ddp else SCRIPT, WORKERS - ON_SECOND
    with local_job(folder, script, *how, workers=on_first, second=ON_SECOND, FLEXO_CORE=case.core) as job:
        yield job


def _training(job: LocalJob, kills: Sequence[Kill]) -> dict[int, int]:
    """The pids of the present workers, by rank, if all train and have taken SETTLED_STEPS steps."""
    since = kills[-1].at if kills else 0.0
    entered = {event["pid"]: event for event in job.events("enter")}
    dead = {kill.pid for kill in kills}
    here = {
        event["rank"]: pid for pid, event in entered.items() if pid not in dead and event["size"] == WORKERS
    }
    if set(here) != set(range(WORKERS)):
        return {}
    newest = max(entered[pid]["time"] for pid in here.values())
    steps = [event for event in job.events("step") if event["time"] > max(since, newest)]
    counts = [sum(step["pid"] == pid for step in steps) for pid in here.values()]
    return here if min(counts) >= SETTLED_STEPS else {}


def _wait_until_settled(job: LocalJob, kills: Sequence[Kill]) -> None:
    job.wait_until(f"{WORKERS} workers that train", lambda: _training(job, kills))


def _kill_aggregator(job: LocalJob, dice: random.Random, kills: Sequence[Kill]) -> Kill:
    del kills
    job.wait_until("two Aggregators", lambda: len(job.aggregators()) == 2)
    victim = dice.choice(job.aggregators())
    return _kill(victim.pid, "Aggregator")


def _kill_worker(job: LocalJob, dice: random.Random, kills: Sequence[Kill]) -> Kill:
    rank = dice.choice(range(1, WORKERS))
    here = _training(job, kills)
    if rank not in here:
        raise JobFailed(f"nobody trains as rank {rank}\n{job.output()[-4000:]}")
    return _kill(here[rank], f"rank {rank}")


def _kill(pid: int, what: str) -> Kill:
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    return Kill(killed_at, pid, what)


def _compared_with_undisturbed(
    case: Case, jobs: Sequence[Killed], folder: Path, setting: Setting
) -> dict[str, Any]:
    """Train as many steps as the longest of these jobs without a death, and compare all parameters."""
    killed = [digests(job.lines) for job in jobs]
    steps = max((max(job, default=0) for job in killed), default=0)
    setting.tell(f"kills: {case.name}, {steps} steps without a death, to compare parameters")
    options = ("--step-seconds", "0", "--steps", str(steps))
    with _started(folder, case, *options) as job:
        job.wait()
        undisturbed = digests(job.events())
    return {"bit_identical": same_bits(killed, undisturbed), "steps_compared": sum(map(len, killed))}


# --- as text ----------------------------------------------------------------------------------------------


def _show(name: str, found: Mapping[str, Any]) -> None:
    samples = f"{found['samples_repeated']}, {found['samples_missing']}"
    times = [_ms(found[name]) for name in ("pause_s", "pause_worst_s", "mini_batch_s")]
    alike = f" | bit for bit alike: {found['bit_identical']}" if "bit_identical" in found else ""
    counts = f"{found['runs']} | {found['batches_lost']} | {samples}"
    print(f"  {name} | {counts} | {times[0]}, {times[1]} ms | {times[2]} ms{alike}", flush=True)
    for why in found["failed"]:
        print(f"    failed: {why}")


def _goals(case: Case, found: Mapping[str, Any]) -> Iterator[Goal]:
    if case.core == TORCH:
        return
    own, batch = ".".join(("kills", *case.keys)), found["mini_batch_s"]
    yield Goal(f"{own}.jobs that did not go on", len(found["failed"]), at_most=0)
    yield Goal(f"{own}.batches_lost", found["batches_lost"], at_most=0)
    yield Goal(f"{own}.samples_repeated", found["samples_repeated"], at_most=0)
    yield Goal(f"{own}.samples_missing", found["samples_missing"], at_most=0)
    for name in ("pause_s", "pause_worst_s"):
        value = None if found[name] is None else found[name] / batch
        yield Goal(f"{own}.{name} in mini-batches", value, at_most=1)
    if "bit_identical" in found:
        yield Goal(f"{own}.bit_identical", float(found["bit_identical"]), at_least=1)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f}"
