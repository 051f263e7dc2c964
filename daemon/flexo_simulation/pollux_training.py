"""The true training of a job of Pollux' workloads: its progress by placement, batch and epoch.

It follows Pollux' own simulator (Qiao et al., OSDI 2021; petuum/adaptdl, branch osdi21-artifact), and that of
Sia (Jayaram Subramanya et al., SOSP 2023; siasosp23/artifacts), where an application has other step times on
each GPU type. A `Learner` holds the job's own observations on one type, which the job may report. The learner
knows only these, and nothing else of this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

from flexo.model.measured import Source, Speed
from flexo.model.training import NodeShare
from flexo.scalability.learner import Learner
from flexo.scalability.local_batch import split
from flexo.scalability.scaled import ScaledSpeed
from flexo.scalability.step_times import Setting
from flexo_simulation.pollux_profiles import Application

_NOTHING_S = 1e-6
"""An event that is nearer than this has happened."""
_TUNED_AFTER_S = 30.0
"""Training time after which a job in a new setting chooses its batch again (Pollux, section 4.1)."""


@dataclass(frozen=True)
class PolluxTraining:
    """One job of an application (implements Training). A worker is one GPU."""

    application: Application
    """The application, as measured on the GPU type of every node that `type_of` does not name."""
    batch: int = 0
    """The aggregate batch that its user chose; 0: the job chooses, by its own observations."""
    declared: bool = True
    """Whether the job declares how many epochs it will train, so that its remaining work is known."""
    caution: float = 0.0
    """Number of standard errors by which the job lowers its expectations of untried sizes."""
    on_type: Mapping[str, Application] = field(default_factory=dict, hash=False)
    """Per GPU type: the same application, as measured on it."""
    type_of: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Per node: its GPU type, which is in `on_type`."""

    def on(self, shares: Sequence[NodeShare]) -> Application | None:
        """The application on the GPU type of these nodes; None: they are of several types, which nobody has
        measured."""
        if not self.on_type:
            return self.application
        found = {self.type_of.get(share.node, "") for share in shares if share.workers}
        return self.on_type.get(found.pop(), self.application) if len(found) == 1 else None

    @cached_property
    def paces(self) -> Mapping[str, float]:
        """Per GPU type: how fast one worker trains there, relative to the first type.

        A trial of one worker on each type finds this when a job arrives (Sia, section 3.3). As in Sia's
        simulator, the trials are not charged.
        """
        times = {each: application.trial_s for each, application in self.on_type.items()}
        return {each: next(iter(times.values())) / trial_s for each, trial_s in times.items()}

    def begin(self) -> PolluxRun:
        """A run from the start."""
        return PolluxRun(self)


class PolluxRun:
    """One job's training under way (implements Run).

    Progress is counted in steps of the initial batch. Epochs end at whole seconds of training time, as in
    Pollux' simulator: an end is rounded to the nearest second, and training beyond it counts for the next
    epoch.
    """

    def __init__(self, training: PolluxTraining) -> None:
        self._training = training
        self._application = training.application
        self._learners: dict[Application, Learner] = {}
        """What the job has observed, by the application on each GPU type that it has had."""
        self._learner = self._learner_of(training.application)
        """The learner that saw the latest step."""
        self._at = training.application
        """The application on the GPU type of the latest step."""
        self._epoch = 0
        self._progress = 0.0
        self._clock_s = 0.0
        """Training time so far."""
        self._tune_at_s = math.inf
        self._shares: Sequence[NodeShare] = ()
        self._samples = 0
        self._pace: _Pace | None = None
        """The pace with these shares and samples; None: the job cannot train so."""
        self._unseen = True
        """Whether the learner has not yet seen the present step time and gradients."""

    @property
    def finished(self) -> bool:
        """Whether its last epoch is over."""
        return self._epoch >= self._application.max_epochs

    @property
    def steady(self) -> bool:
        """False: the worth of a step changes from epoch to epoch."""
        return False

    def time_left_s(self, shares: Sequence[NodeShare], samples: int) -> float:
        """Seconds to the end, if the batch is given; if the job chooses it, to the time when it may choose
        again."""
        if self.finished:
            return 0.0
        pace = self._pace_with(shares, samples)
        if pace is None:
            return math.inf
        ends_s = self._epoch_ends_s(pace)
        if not (samples or self._training.batch):
            until_s = min(_noticed(ends_s), self._tune_at_s)
        elif self._epoch + 1 < self._application.max_epochs:
            until_s = round(ends_s) + pace.seconds_from(self._epoch + 1)
        else:
            until_s = _noticed(ends_s)
        return max(_NOTHING_S, until_s - self._clock_s)

    def advance(self, seconds: float, shares: Sequence[NodeShare], samples: int) -> float:
        """Train for `seconds`; returns the seconds that it trained before it finished."""
        began_s = self._clock_s
        until_s = began_s + seconds
        self._change(shares, samples)
        while self._pace is not None and not self.finished and self._clock_s < until_s:
            self._observe(self._pace)
            ends_s = self._epoch_ends_s(self._pace)
            stop_s = min(until_s, self._tune_at_s)
            if _noticed(ends_s) <= stop_s + _NOTHING_S:
                self._end_epoch(round(ends_s))
            else:
                self._progress += self._pace.rate(self._epoch) * (stop_s - self._clock_s)
                self._clock_s = stop_s
                if self._tune_at_s <= stop_s + _NOTHING_S:
                    self._tune()
        return max(0.0, self._clock_s - began_s) if self.finished else seconds

    def speed(self) -> Speed | None:
        """The speed on the GPU type of its latest step, by its observations there; None before its first
        step."""
        return self._learner.speed()

    def speeds(self) -> tuple[tuple[str, Speed], ...]:
        """The speed on each GPU type: by observations there, else by those of the latest type and the trials.

        Empty where there is one type.
        """
        latest, paces = self._learner.speed(), self._training.paces
        here = next((paces[each] for each, known in self._training.on_type.items() if known is self._at), 1.0)
        return tuple((each, self._speed_on(each, latest, pace / here)) for each, pace in paces.items())

    def _speed_on(self, gpu_type: str, latest: Speed | None, pace: float) -> Speed:
        learner = self._learners.get(self._training.on_type[gpu_type])
        known = None if learner is None else learner.speed()
        return known or ScaledSpeed(latest, pace)

    def remaining_work(self) -> float | None:
        """Steps of the initial batch to the end of the declared epochs; None: not declared, or before the
        first step.

        This is not the truth: all epochs are assumed to be as long as the first one (the length of the data).
        """
        if not self._training.declared or self._learner.speed() is None:
            return None
        epochs = self._application.epochs
        return max(0.0, self._application.max_epochs * epochs.ends[0] - self._progress)

    @property
    def source(self) -> Source:
        """The job's own reported progress."""
        return Source.PROGRESS

    def _change(self, shares: Sequence[NodeShare], samples: int) -> None:
        """Go on with these shares and this batch, if they differ from the present ones."""
        if samples != self._samples or shares != self._shares:
            self._pace = self._pace_with(shares, samples)
            self._shares, self._samples = shares, samples
            self._unseen, self._tune_at_s = True, math.inf

    def _pace_with(self, shares: Sequence[NodeShare], samples: int) -> _Pace | None:
        if samples == self._samples and shares == self._shares:
            return self._pace
        return self._choose(shares, samples)

    def _choose(self, shares: Sequence[NodeShare], samples: int) -> _Pace | None:
        """The pace with `shares`: with the given batch, its user's, or the best by the job's observations."""
        placement = tuple(share.workers for share in shares if share.workers)
        application = self._training.on(shares)
        if not placement or application is None:
            return None
        batch = samples or self._training.batch
        if not batch:
            batch = self._learner_of(application).choose_batch(sum(placement), len(placement))
        return _pace(application, placement, batch)

    def _learner_of(self, application: Application) -> Learner:
        if application not in self._learners:
            training = self._training
            self._learners[application] = Learner(application.limits, training.batch, training.caution)
        return self._learners[application]

    def _observe(self, pace: _Pace) -> None:
        """Show the learner the present step time and gradients, once per epoch."""
        if not self._unseen:
            return
        self._unseen = False
        self._learner, self._at = self._learner_of(pace.application), pace.application
        workers, nodes = sum(pace.placement), len(pace.placement)
        setting = Setting(workers, nodes, pace.passes.local)
        for learner in self._learners.values():  # gradients are the same on every GPU type
            learner.saw_gradients(self._application.epochs.gradients(pace.batch, self._epoch))
        if self._learner.saw_step(setting, pace.time) and self._chooses:
            self._tune_at_s = self._clock_s + _TUNED_AFTER_S

    def _tune(self) -> None:
        """Choose the batch again."""
        self._tune_at_s = math.inf
        pace = self._choose(self._shares, self._samples)
        if pace is not self._pace:
            self._pace, self._unseen = pace, True

    @property
    def _chooses(self) -> bool:
        return not (self._samples or self._training.batch)

    def _epoch_ends_s(self, pace: _Pace) -> float:
        """The end of the epoch, on the run's own clock."""
        left = self._application.epochs.ends[self._epoch] - self._progress
        return self._clock_s + left / pace.rate(self._epoch)

    def _end_epoch(self, at_s: float) -> None:
        self._progress = self._application.epochs.ends[self._epoch]
        self._clock_s = at_s
        self._epoch += 1
        self._unseen = True
        if self._chooses and not self.finished:
            self._tune()


class _Pace:
    """The pace of any job of an application through its epochs, with one placement and one batch."""

    def __init__(self, application: Application, placement: tuple[int, ...], batch: int) -> None:
        """Raises ValueError if this has not been measured."""
        workers = sum(placement)
        self.application = application
        self.placement = placement
        self.passes = split(batch, workers, application.limits_on(placement))
        self.time = application.step_times.of(placement, self.passes.local)
        self.batch = self.passes.batch(workers)
        self._step_s = self.time.step_s + self.passes.accumulated * self.time.compute_s
        self._scale = self.batch / application.limits.initial
        self._epochs = application.epochs
        self._rates: dict[int, float] = {}
        self.rate(0)

    def rate(self, epoch: int) -> float:
        """Steps of the initial batch per second."""
        known = self._rates.get(epoch)
        if known is None:
            gain = self._epochs.gradients(self.batch, epoch).gain(self._scale)
            known = self._rates[epoch] = gain / self._step_s
        return known

    def seconds_from(self, epoch: int) -> float:
        """The duration of the epochs from this one on, the first begun at a whole second."""
        return self._seconds_from[epoch]

    @cached_property
    def _seconds_from(self) -> list[float]:
        lengths = [
            (end - before) / self.rate(epoch)
            for epoch, (before, end) in enumerate(pairwise((0.0, *self._epochs.ends)))
        ]
        sums = [_noticed(lengths[-1])]
        for length in reversed(lengths[:-1]):
            sums.append(sums[-1] + round(length))
        return sums[::-1]


@lru_cache(maxsize=16384)
def _pace(application: Application, placement: tuple[int, ...], batch: int) -> _Pace | None:
    """The pace of an application; None: it cannot train so."""
    try:
        return _Pace(application, placement, batch)
    except ValueError:
        return None


def _noticed(ends_s: float) -> float:
    """The time at which the end of an epoch counts: its end rounded to a whole second, but not before the end
    itself."""
    return max(ends_s, round(ends_s))
