"""Parts `pauses` and `large`: every rival grows and shrinks by one worker, again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flexo_bench.runtime.pauses import Change, Pause, pause, warming_slows
from flexo_bench.runtime.results import FLEXOS, OURS, RESTART, Resize
from flexo_bench.runtime.rivals import Rival, Training, running, wait_until_settled
from flexo_bench.runtime.traces import grant_to_useful

SMALL, BIG = 2, 3
"""The job goes from SMALL to BIG workers and back."""
SETTLED = {"toy": 12, "large": 7}
"""Mini-batches of every worker between two changes."""

Tell = Callable[[str], None]


def cycles_of(rival: str, model: str, cycles: int) -> int:
    """Number of times that `rival` is resized out and in. Only stock and core_torch get all `cycles`."""
    if rival == RESTART:
        return min(cycles, 2 if model == "large" else 3)
    return min(cycles, 3) if rival == OURS else cycles


def measure(rivals: Sequence[Rival], model: str, cycles: int, folder: Path, tell: Tell) -> Iterator[Resize]:
    """Resize each rival out and in, at most `cycles` times. Raises RivalFailed."""
    for rival in rivals:
        training = Training(folder / f"{model}-{rival.name}", model, largest=BIG)
        yield from _resizes(rival, training, cycles_of(rival.name, model, cycles), tell)


def _resizes(rival: Rival, training: Training, cycles: int, tell: Tell) -> Iterator[Resize]:
    settled = SETTLED[training.model]
    with running(rival, training, SMALL) as log:
        wait_until_settled(rival, log, SMALL, settled)
        for _ in range(cycles):
            for before, after in ((SMALL, BIG), (BIG, SMALL)):
                asked_at = rival.resize(after)
                wait_until_settled(rival, log, after, settled, asked_at)
                change = Change(before, after, asked_at)
                cost = pause(log.batches, change, by_rank=rival.by_rank)
                tell(_line(rival.name, training.model, cost))
                if rival.name in FLEXOS and cost.out:
                    useful_s = grant_to_useful(training.folder, asked_at, cost)
                    yield Resize(rival.name, training.model, cost, useful_s, warming_slows(log, change))
                else:
                    yield Resize(rival.name, training.model, cost)


def _line(rival: str, model: str, cost: Pause) -> str:
    redone = f", {cost.redone} mini-batches done again" if cost.redone else ""
    return (
        f"{model:5} {rival:10} {cost.before} to {cost.after} workers: paused {cost.pause_s:7.3f} s, "
        f"first at the new size {cost.first_useful_s:5.1f} s after the request{redone}"
    )
