"""Measures a training run by its workers' own logs: lost and repeated work, and pauses.

The functions are pure: text in, figures out. Each worker of examples/digits/train.py writes a file of JSON
lines. A line `enter` says that the worker enters the training function (again), with its rank, the number of
workers and the next step. A line `commit` says that a step is saved. The part of a worker's log between two
`enter` lines is a *stint*. The stints of all ranks between two changes of workers make a *world*. Times are
seconds since the epoch, by one machine's clock.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Commit:
    """One line `commit`: the worker saved `step`, in which it had learned `samples`."""

    step: int
    epoch: int
    at: float
    loss: float
    """This worker's part of the loss: the parts of all ranks add up to the global batch's mean."""
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stint:
    """The work of one worker in one world."""

    worker: str
    rank: int
    size: int
    entered_at: float
    first_step: int
    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class WorkerLog:
    """One worker's file. `unreadable` counts invalid lines, such as a torn line of a killed worker."""

    stints: tuple[Stint, ...]
    unreadable: int


@dataclass(frozen=True, slots=True)
class World:
    """The workers that trained together between two changes."""

    size: int
    first_step: int
    stints: tuple[Stint, ...]

    @property
    def last_step(self) -> int:
        """The last step that any worker of the world saved; first_step - 1 if no worker saved one."""
        return max(
            (commit.step for stint in self.stints for commit in stint.commits), default=self.first_step - 1
        )

    def times_logged(self) -> Counter[int]:
        """Per step: how many times *every* rank saved the step. It is 1, or 0 if a rank's line is missing."""
        per_rank = [Counter(commit.step for commit in stint.commits) for stint in self.stints]
        steps = set().union(*per_rank)
        whole = len(self.stints) == self.size
        return Counter({step: min(count[step] for count in per_rank) if whole else 0 for step in steps})


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The planned work of a run: every sample once in each epoch, `batch` samples in each step."""

    epochs: int
    batch: int
    train_samples: int

    @property
    def steps(self) -> int:
        """Steps of the whole run; the last batch of an epoch may be smaller."""
        return self.epochs * -(-self.train_samples // self.batch)


@dataclass(frozen=True, slots=True)
class Resize:
    """One change of workers, measured by the workers that stayed."""

    before: int
    after: int
    last_step: int
    """The last step before the change."""
    at: float
    """Time at which that step was saved."""
    pause_s: float
    """The longest time between two commits of a worker that stayed, less the median step."""
    clean: bool
    """True if every rank had saved the last step, and the next world went on with the step after it."""


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a run, which may still be going on."""

    sizes: tuple[int, ...]
    """Number of workers of each world, in order."""
    resizes: tuple[Resize, ...]
    steps_done: int
    median_step_s: float

    @property
    def pauses_out_s(self) -> tuple[float, ...]:
        """The workers' pause at each growth of the job."""
        return tuple(resize.pause_s for resize in self.resizes if resize.after > resize.before)

    @property
    def pauses_in_s(self) -> tuple[float, ...]:
        """The workers' pause at each shrink of the job."""
        return tuple(resize.pause_s for resize in self.resizes if resize.after < resize.before)


@dataclass(frozen=True, slots=True)
class Balance:
    """The work of an ended run, compared with its plan."""

    batches_planned: int
    batches_committed: int
    batches_lost: int
    """Steps of the plan that no world committed."""
    batches_repeated: int
    """Steps that were committed more than once."""
    batches_half_logged: int
    """Steps that some rank of a world saved and another did not: traces of a crash."""
    samples_lost: int
    """Pairs (epoch, sample) that are in no committed batch, counted in the workers' own lists."""
    samples_repeated: int
    unreadable_lines: int


def read_logs(directory: Path) -> tuple[WorkerLog, ...]:
    """All workers' logs in `directory`; empty if no worker wrote one."""
    files = sorted(directory.glob("worker-*.jsonl"))
    return tuple(parse_worker_log(file.stem, file.read_text(errors="replace")) for file in files)


def parse_worker_log(worker: str, text: str) -> WorkerLog:
    """Parse one worker's file into stints."""
    entered: list[tuple[dict[str, Any], list[Commit]]] = []
    unreadable = 0
    for line in text.splitlines():
        try:
            fields = json.loads(line)
            if fields["event"] == "enter":
                # read the stint's fields now, so that a line that lacks one counts as unreadable
                entered.append(({key: fields[key] for key in ("rank", "size", "time", "step")}, []))
            elif fields["event"] == "commit" and entered:
                entered[-1][1].append(_commit(fields))
            else:
                unreadable += 1
        except (ValueError, KeyError, TypeError):
            unreadable += 1
    stints = tuple(
        Stint(worker, enter["rank"], enter["size"], enter["time"], enter["step"], tuple(commits))
        for enter, commits in entered
    )
    return WorkerLog(stints, unreadable)


def _commit(fields: dict[str, Any]) -> Commit:
    return Commit(
        step=fields["step"],
        epoch=fields["epoch"],
        at=fields["time"],
        loss=fields["loss"],
        samples=tuple(fields["samples"]),
    )


def find_worlds(stints: Iterable[Stint]) -> tuple[World, ...]:
    """The worlds in order of time, without worlds in which nothing was committed.

    Worlds follow one another: no worker enters the next world before all workers that stay have left the
    last. So stints in order of entry belong together until one differs in size or step, or has a rank or
    worker that the world already has.
    """
    groups: list[list[Stint]] = []
    for stint in sorted(stints, key=lambda each: each.entered_at):
        if groups and _belongs(stint, groups[-1]):
            groups[-1].append(stint)
        else:
            groups.append([stint])
    return tuple(
        World(group[0].size, group[0].first_step, tuple(sorted(group, key=lambda each: each.rank)))
        for group in groups
        if any(stint.commits for stint in group)
    )


def _belongs(stint: Stint, group: Sequence[Stint]) -> bool:
    same_world = (stint.size, stint.first_step) == (group[0].size, group[0].first_step)
    return same_world and all(stint.rank != other.rank and stint.worker != other.worker for other in group)


def course(logs: Sequence[WorkerLog]) -> Course | None:
    """The course of the run so far; None before the first committed batch."""
    worlds = _worlds_of(logs)
    if not worlds:
        return None
    median_step_s = _median_step(worlds)
    return Course(
        sizes=tuple(world.size for world in worlds),
        resizes=tuple(_resize(before, after, median_step_s) for before, after in pairwise(worlds)),
        steps_done=worlds[-1].last_step + 1,
        median_step_s=median_step_s,
    )


def balance(logs: Sequence[WorkerLog], plan: EpochPlan) -> Balance:
    """Compare the run with `plan`."""
    worlds = _worlds_of(logs)
    times = _times_committed(worlds)
    seen = _times_seen(worlds, times)
    every_sample = ((epoch, sample) for epoch in range(plan.epochs) for sample in range(plan.train_samples))
    return Balance(
        batches_planned=plan.steps,
        batches_committed=sum(1 for step in range(plan.steps) if times[step]),
        batches_lost=sum(1 for step in range(plan.steps) if not times[step]),
        batches_repeated=sum(1 for count in times.values() if count > 1),
        batches_half_logged=sum(
            1 for world in worlds for count in world.times_logged().values() if count == 0
        ),
        samples_lost=sum(1 for pair in every_sample if pair not in seen),
        samples_repeated=sum(1 for count in seen.values() if count > 1),
        unreadable_lines=sum(log.unreadable for log in logs),
    )


def _worlds_of(logs: Iterable[WorkerLog]) -> tuple[World, ...]:
    return find_worlds(stint for log in logs for stint in log.stints)


def _times_committed(worlds: Sequence[World]) -> Counter[int]:
    """Per step: in how many worlds every rank committed it.

    A rank that is killed between saving and logging leaves a step half logged. Such a step counts if the next
    world went on after the step, and does not count if the next world repeated the step.
    """
    total: Counter[int] = Counter()
    for number, world in enumerate(worlds):
        went_on_at = worlds[number + 1].first_step if number + 1 < len(worlds) else 0
        for step, count in world.times_logged().items():
            total[step] += count or int(step < went_on_at)
    return total


def _times_seen(worlds: Sequence[World], committed: Counter[int]) -> Counter[tuple[int, int]]:
    """Per pair (epoch, sample): how often it was learned in committed steps."""
    return Counter(
        (commit.epoch, sample)
        for world in worlds
        for stint in world.stints
        for commit in stint.commits
        if committed[commit.step]
        for sample in commit.samples
    )


def _median_step(worlds: Sequence[World]) -> float:
    """Median time from one commit to the next inside a stint; 0 if no stint has two commits."""
    gaps = [
        second.at - first.at
        for world in worlds
        for stint in world.stints
        for first, second in pairwise(stint.commits)
    ]
    return statistics.median(gaps) if gaps else 0.0


def _resize(before: World, after: World, median_step_s: float) -> Resize:
    ends = {stint.worker: stint.commits[-1].at for stint in before.stints if stint.commits}
    gaps = [
        stint.commits[0].at - ends[stint.worker]
        for stint in after.stints
        if stint.commits and stint.worker in ends
    ]
    return Resize(
        before=before.size,
        after=after.size,
        last_step=before.last_step,
        at=max(ends.values()),
        pause_s=max(0.0, max(gaps, default=0.0) - median_step_s),
        clean=after.first_step == before.last_step + 1 and before.times_logged()[before.last_step] > 0,
    )


def loss_curve(logs: Sequence[WorkerLog]) -> tuple[tuple[float, float], ...]:
    """Pairs (time, loss of the global batch) for each step that a whole world committed, in order of time."""
    points: list[tuple[float, float]] = []
    for world in _worlds_of(logs):
        whole = world.times_logged()
        by_step: dict[int, list[Commit]] = {}
        for stint in world.stints:
            for commit in stint.commits:
                by_step.setdefault(commit.step, []).append(commit)
        points.extend(
            (max(part.at for part in parts), sum(part.loss for part in parts))
            for step, parts in by_step.items()
            if whole[step] == 1
        )
    return tuple(sorted(points))
