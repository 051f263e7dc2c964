"""Which worker holds the others up (Amoeba, section 5.4), and whether it pays to go on without it.

Pure. A worker is a straggler when it was slower than the others in `window` consecutive mini-batches. What
counts is a worker's own time, without its waiting in collectives: in synchronous training everybody's wall
time is that of the slowest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

_KEPT = 256
"""Mini-batches of which the times of some workers may be missing."""


@dataclass(frozen=True, slots=True)
class StragglerSettings:
    """What is slow, and for how long. The window is the paper's; the others it leaves open."""

    ratio: float = 1.5
    """Own time to the median own time of the others."""
    window: int = 10
    """Consecutive mini-batches."""
    excess_s: float = 0.005
    """A worker that is slower by less costs nobody anything; mini-batches of a millisecond are mostly noise.
    """
    settle: int = 3
    """First mini-batches of a generation that do not count: caches and allocators are cold in some workers.
    """


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that was slower than the others in every mini-batch of a window."""

    worker_id: str
    ratio: float
    """Median over the window, of its own time to the others' median."""
    batches: int


class StragglerWatch:
    """Watches one generation after the other; fed with what workers say of their mini-batches."""

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
        """`workers` train from now on; what was known of the generation before does not count."""
        self._generation, self._workers = generation, frozenset(workers)
        self._times, self._last, self._streaks, self._told = {}, 0, {}, set()

    def steps(
        self, worker_id: str, generation: int, boundary: int, own_s: Sequence[float]
    ) -> tuple[Straggler, ...]:
        """Own times of the mini-batches of a worker that end at `boundary`, its newest last; seconds.

        Returns the stragglers that this makes known: each once, as long as it stays slow.
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
        """The mini-batches that all workers have told of, in order, not yet judged."""
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
            # without any time of the others' there is no ratio to tell; any large number says it
            streak = [*streak, seconds / others if others > 0 else 1000.0] if slow else []
            self._streaks[worker_id] = streak[-settings.window :]
            if not slow:
                self._told.discard(worker_id)
            elif len(streak) >= settings.window and worker_id not in self._told:
                self._told.add(worker_id)
                yield Straggler(worker_id, median(self._streaks[worker_id]), settings.window)


def leaving_pays(workers: int, leaving: int, ratio: float) -> bool:
    """Whether `workers` train faster without `leaving` of them, one of which takes `ratio` times as long as
    the rest.

    Synchronous training goes at the pace of the slowest, so with it `workers` do the work of workers /
    ratio. The unit of return is the satellite: all of its workers leave with the slow one.
    """
    return workers - leaving > workers / ratio


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a straggler. flexod is told of its GPU in either case."""

    release: bool
    why: str


def advice(straggler: Straggler, workers: int, on_its_node: int, base: bool) -> Advice:
    """`on_its_node`: workers of its satellite, itself included; `base`: it belongs to the minimum."""
    slow = f"worker {straggler.worker_id} takes {straggler.ratio:.1f} times as long as the others"
    if base:
        return Advice(False, f"{slow}; it stays, because the base is the job's minimum")
    if not leaving_pays(workers, on_its_node, straggler.ratio):
        left = workers - on_its_node
        return Advice(
            False, f"{slow}; its satellite stays, because {left} of {workers} workers would be slower yet"
        )
    return Advice(True, f"{slow}: its satellite leaves")
