"""Finds stragglers, workers that delay the others (Amoeba, section 5.4), and whether to go on without them.

Pure. A worker is a straggler when it was slower than the others in `window` consecutive mini-batches. A
worker's own time counts, without its waiting in collectives: in synchronous training every worker's wall time
is that of the slowest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

_KEPT = 256
"""Number of mini-batches that are kept while the times of some workers are missing."""


@dataclass(frozen=True, slots=True)
class StragglerSettings:
    """The thresholds of a straggler. The window is the paper's; the paper leaves the others open."""

    ratio: float = 1.5
    """Smallest ratio of a straggler's own time to the median own time of the others."""
    window: int = 10
    """Number of consecutive mini-batches in which a straggler is slower."""
    excess_s: float = 0.005
    """Smallest difference in seconds. A smaller one costs little; times of a millisecond are mostly noise."""
    settle: int = 3
    """Number of first mini-batches of a generation that do not count: some caches and allocators are cold."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that was slower than the others in every mini-batch of a window."""

    worker_id: str
    ratio: float
    """Median, over the window, of the ratio of its own time to the others' median."""
    batches: int


class StragglerWatch:
    """Finds the stragglers of one generation after the other, from workers' times of mini-batches."""

    def __init__(self, settings: StragglerSettings | None = None) -> None:
        self._settings = settings or StragglerSettings()
        self._generation = 0
        self._workers: frozenset[str] = frozenset()
        self._times: dict[int, dict[str, float]] = {}
        self._last = 0
        """The mini-batch that was judged last."""
        self._streaks: dict[str, list[float]] = {}
        self._told: set[str] = set()

    def trains(self, generation: int, workers: Collection[str]) -> None:
        """`workers` train from now on. Times of the generation before do not count."""
        self._generation, self._workers = generation, frozenset(workers)
        self._times, self._last, self._streaks, self._told = {}, 0, {}, set()

    def steps(
        self, worker_id: str, generation: int, boundary: int, own_s: Sequence[float]
    ) -> tuple[Straggler, ...]:
        """Take a worker's own times of mini-batches, in seconds, of which the last ends at `boundary`.

        Returns the stragglers that are found now. Each is returned once, as long as it stays slow.
        """
        if generation != self._generation or worker_id not in self._workers or len(self._workers) < 2:
            return ()
        for index, seconds in enumerate(own_s, start=boundary - len(own_s) + 1):
            if index > max(self._last, self._settings.settle):
                self._times.setdefault(index, {})[worker_id] = seconds
        found = [straggler for index in self._complete() for straggler in self._judge(index)]
        for index in sorted(self._times)[:-_KEPT]:
            del self._times[index]
        return tuple(found)

    def _complete(self) -> list[int]:
        """The mini-batches that all workers have reported and that are not judged yet, in order."""
        return [index for index in sorted(self._times) if len(self._times[index]) == len(self._workers)]

    def _judge(self, index: int) -> Iterable[Straggler]:
        times = self._times.pop(index)
        consecutive = index == self._last + 1
        self._last = index
        self._times = {later: told for later, told in self._times.items() if later > index}
        settings = self._settings
        for worker_id, seconds in times.items():
            others = median(other for name, other in times.items() if name != worker_id)
            slow = seconds > settings.ratio * others and seconds - others > settings.excess_s
            streak = self._streaks.get(worker_id, []) if consecutive else []
            # if the others' time is 0 there is no ratio; any large number will do
            streak = [*streak, seconds / others if others > 0 else 1000.0] if slow else []
            self._streaks[worker_id] = streak[-settings.window :]
            if not slow:
                self._told.discard(worker_id)
            elif len(streak) >= settings.window and worker_id not in self._told:
                self._told.add(worker_id)
                yield Straggler(worker_id, median(self._streaks[worker_id]), settings.window)


def leaving_pays(workers: int, leaving: int, ratio: float) -> bool:
    """Whether `workers` workers train faster without `leaving` of them, one of which takes `ratio` times as
    long as the rest.

    Synchronous training goes at the pace of the slowest worker. With it, `workers` workers do the work of
    workers / ratio. A satellite is given back as a whole: all of its workers leave with the slow one.
    """
    return workers - leaving > workers / ratio


@dataclass(frozen=True, slots=True)
class Advice:
    """The action for a straggler. The leader reports its GPU to flexod in either case."""

    release: bool
    why: str


def advice(straggler: Straggler, workers: int, on_its_node: int, base: bool) -> Advice:
    """Whether to give the straggler's satellite back, and why.

    `on_its_node`: number of workers in its satellite, itself included. `base`: it belongs to the minimum.
    """
    slow = f"worker {straggler.worker_id} takes {straggler.ratio:.1f} times as long as the others"
    if base:
        return Advice(False, f"{slow}; it stays, because the base is the job's minimum")
    if not leaving_pays(workers, on_its_node, straggler.ratio):
        left = workers - on_its_node
        return Advice(
            False, f"{slow}; its satellite stays, because {left} of {workers} workers would be slower yet"
        )
    return Advice(True, f"{slow}: its satellite leaves")
