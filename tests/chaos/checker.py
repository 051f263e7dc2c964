"""Whether every sample was trained exactly once, apart from what was rolled back: from workers' logs. Pure.

A *world* is a set of workers that train together; it has a name that its rank 0 made up. It begins at a step:
all mini-batches after that step which earlier worlds did are rolled back. What is left in the end is the
history: it must hold every sample of every epoch once. Planned changes roll back nothing, and crashes no more
than what came after the last commit of anybody who is still there. When nobody is, training restarts.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank trained on in one mini-batch."""

    rank: int
    step: int
    epoch: int
    at: float
    samples: tuple[int, ...]


@dataclass
class World:
    """Workers that trained together."""

    name: str
    size: int
    first_step: int
    """All up to this one are done when it begins."""
    began_at: float
    workers: set[int] = field(default_factory=set)
    steps: dict[int, dict[int, Share]] = field(default_factory=dict)
    """step -> rank -> share."""
    committed: dict[int, int] = field(default_factory=dict)
    """worker -> the last step that it committed here."""

    def whole(self, step: int) -> bool:
        """Whether every rank has begun that mini-batch: else it cannot have counted."""
        return len(self.steps.get(step, {})) == self.size


@dataclass(frozen=True, slots=True)
class Done:
    """A worker that got to the end."""

    worker: int
    step: int
    epochs: int
    total: int
    parameters: str


@dataclass(frozen=True, slots=True)
class Record:
    """All that the workers of a job have logged."""

    worlds: tuple[World, ...]
    """In order of time."""
    done: tuple[Done, ...]
    batches: tuple[float, ...]
    """When a worker began a mini-batch, in order of time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong (nothing: exactly once holds), and what happened."""

    wrong: tuple[str, ...]
    worlds: int
    steps: int
    epochs: int
    rolled_back: int
    """Mini-batches that were thrown away after crashes."""
    restarts: int
    """Times that training began again from its beginning: all who held the model were dead."""


def read(folder: Path) -> Record:
    """All logs in `folder`. A torn last line, of a worker that is writing or was killed, is left out."""
    lines: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.jsonl")):
        text = path.read_text()
        lines += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return record(lines)


def record(lines: Iterable[Mapping[str, Any]]) -> Record:
    """Sort the lines of all workers into worlds."""
    worlds: dict[str, World] = {}
    done: list[Done] = []
    batches: list[float] = []
    for line in sorted(lines, key=lambda each: each["time"]):
        match line:
            case {"event": "enter", "world": name, "size": size, "step": step, "time": at, "pid": pid}:
                world = worlds.setdefault(name, World(name, size, step, at))
                world.workers.add(pid)
                if world.first_step != step:
                    raise ValueError(f"one world begins at step {world.first_step} and at step {step}")
            case {"event": "batch", "world": name}:
                share = _share(line)
                worlds[name].steps.setdefault(share.step, {})[share.rank] = share
                batches.append(share.at)
            case {"event": "commit", "world": name, "step": step, "pid": pid}:
                worlds[name].committed[pid] = step
            case {"event": "done"}:
                done.append(_done(line))
    return Record(tuple(worlds.values()), tuple(done), tuple(batches))


def _share(line: Mapping[str, Any]) -> Share:
    return Share(line["rank"], line["step"], line["epoch"], line["time"], tuple(line["samples"]))


def _done(line: Mapping[str, Any]) -> Done:
    return Done(line["pid"], line["step"], line["epochs"], line["total"], line["parameters"])


def check(found: Record, samples: int, struck_at: float = math.inf) -> Verdict:
    """Judge a job that has ended; `samples` is the number of samples of an epoch.

    Before `struck_at` (seconds since the epoch) nobody died, so nothing may be rolled back.
    """
    wrong: list[str] = []
    history: dict[int, World] = {}
    rolled_back = restarts = 0
    for number, world in enumerate(found.worlds):
        dropped = [step for step in history if step > world.first_step]
        if dropped and _restarts(found.worlds[:number], world):
            restarts += 1
        else:
            rolled_back += len(dropped)
        if dropped and world.began_at < struck_at:
            wrong.append(f"a planned change lost {len(dropped)} mini-batches after step {world.first_step}")
        for step in dropped:
            del history[step]
        if len(history) != world.first_step:
            wrong.append(f"a world begins after step {world.first_step}, but only {len(history)} are done")
        history.update({step: world for step in sorted(world.steps) if world.whole(step)})
    wrong += _too_far_back(found.worlds)
    if sorted(history) != list(range(1, len(history) + 1)):
        missing = set(range(1, max(history) + 1)) - set(history)
        wrong.append(f"steps are missing: {sorted(missing)}")
    wrong += _wrong_samples(history, samples) + _wrong_end(found, history)
    epochs = max((done.epochs for done in found.done), default=0)
    return Verdict(tuple(wrong), len(found.worlds), len(history), epochs, rolled_back, restarts)


def _restarts(before: Sequence[World], world: World) -> bool:
    """Whether it begins with nothing, and with nobody who has trained before."""
    return world.first_step == 0 and not any(world.workers & earlier.workers for earlier in before)


def _too_far_back(worlds: Sequence[World]) -> list[str]:
    """Nobody who is still there may lose what it has committed."""
    wrong = []
    for before, after in pairwise(worlds):
        kept = max((before.committed.get(worker, 0) for worker in after.workers), default=0)
        if after.first_step < kept:
            wrong.append(f"went back to step {after.first_step}, although {kept} was committed")
    return wrong


def _wrong_samples(history: Mapping[int, World], samples: int) -> list[str]:
    trained: dict[int, Counter[int]] = {}
    wrong = []
    for step, world in history.items():
        shares = world.steps[step].values()
        for share in shares:
            trained.setdefault(share.epoch, Counter()).update(share.samples)
        if not all(share.samples for share in shares) and sum(len(s.samples) for s in shares) >= world.size:
            wrong.append(f"step {step}: a worker had nothing to do, although there was enough for all")
    for epoch, counted in sorted(trained.items()):
        missing = samples - len(counted)
        twice = sum(1 for count in counted.values() if count > 1)
        if missing or twice:
            wrong.append(f"epoch {epoch}: {missing} samples were never trained on, {twice} more than once")
    return wrong


def _wrong_end(found: Record, history: Mapping[int, World]) -> list[str]:
    if not found.done or not found.worlds:
        return ["nobody got to the end"]
    last, wrong = found.worlds[-1], []
    if {done.worker for done in found.done} != last.workers:
        wrong.append(f"{len(found.done)} workers got to the end, of {last.size} who trained at last")
    if len({(done.step, done.total, done.parameters) for done in found.done}) > 1:
        wrong.append("workers ended with different steps, sums or parameters")
    shares = [share for step, world in history.items() for share in world.steps[step].values()]
    total = sum(sum(share.samples) for share in shares)
    if found.done[0].total != total:
        wrong.append(f"the state has summed up {found.done[0].total}, what was trained on sums up to {total}")
    return wrong
