"""The control law of one shared GPU, pure: what is seen goes in, the gate's order comes out.

AntMan (OSDI'20, section 3.3) adjusts the opportunistic job by feedback on the guarantee job's mini-
batches. Here the gate does that without delay, and the law decides when the gate may open, how much
memory the opportunistic job may hold, and which gaps it may fill:

1. After a newcomer on either side the gate is closed and the limit 0, until STEADY steps are steady.
2. limit = total - the guarantee job's peak - headroom. It rises in steps and falls at once. The peak counts
   for a while after that job's end. A job that keeps more for half a minute is evicted.
3. If steps get longer than the baseline by more than the tolerance: halve, then close and rest.
4. The baseline is measured anew each minute with the gate closed, in at most 1 % of the time.
5. A guarantee job whose page is stale closes the gate.
6. No gap that is shorter than 100 times the leak of a gap is filled.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from horovod_elastic.sharing.pages import GateState
from horovod_elastic.sharing.watchdog import STALE_S

FAR = 2**62
"""A patience that no gap outlasts, in nanoseconds."""
CONTEXT = 600 << 20
"""Bytes that a CUDA context is taken to hold besides PyTorch's memory. They never shrink."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers of the law. Seconds, steps of the guarantee job, and fractions."""

    headroom: float = 0.10
    steady_steps: int = 30
    steady_change: float = 0.10
    """The medians of both halves of the steady steps differ by at most this."""
    tolerance: float = 0.03
    """A step may get longer by this before anything is done (TGS, NSDI'23, has the same)."""
    judge_steps: int = 20
    rises: int = 4
    """The limit rises to its full size in this number of steps."""
    baseline_every_s: float = 60.0
    baseline_share: float = 0.01
    baseline_steps: tuple[int, int] = (3, 10)
    stale_s: float = STALE_S
    leak_factor: float = 100.0
    trials: int = 4
    """Leaks that are measured, after each baseline, before the rule about short gaps holds."""
    retrial_s: float = 10.0
    """They are measured once more so long after a newcomer: its first operations load libraries, and leak."""
    rest_s: float = 10.0
    longest_rest_s: float = 300.0
    remembered: int = 64
    over_s: float = 30.0
    """The opportunistic job may hold too much for so long, because moving tensors out takes time."""
    return_s: float = 600.0
    """A guarantee job that has ended may come back within this time, as its next process."""


class Phase(enum.Enum):
    """What the law does. The words are the status's reasons."""

    FREE = "no guarantee job: the opportunistic job has the GPU"
    IDLE = "no opportunistic job"
    WARMING = "measuring the guarantee job's own speed with the gate closed"
    SHARING = "the opportunistic job fills gaps"
    BASELINE = "measuring the guarantee job's own speed again"
    RESTING = "the guarantee job was slowed down: the gate is closed for a while"


@dataclass(frozen=True, slots=True)
class GuaranteeSeen:
    """The guarantee job since the last decision. `cycles`: seconds from step to step. `gaps`: seconds."""

    identity: int
    cycles: tuple[float, ...]
    gaps: tuple[float, ...]
    peak: int
    age_s: float


@dataclass(frozen=True, slots=True)
class OpportunisticSeen:
    """The opportunistic job since the last decision. `leaks`: seconds that it worked into a flight.

    `memory`: bytes that it holds. `moved`: bytes that it has moved out.
    """

    identity: int
    leaks: tuple[float, ...]
    memory: int = 0
    moved: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a GPU. `now_s`: any clock that only rises.

    `complete`: whether all jobs have had the time to introduce themselves to a coordinator that has just
    started. Before that nobody knows that there is no guarantee job.
    """

    now_s: float
    total: int
    guarantee: GuaranteeSeen | None
    opportunistic: OpportunisticSeen | None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Order:
    """What the gate page says. `patience_s`: a gap may be filled once it has lasted this long.

    `every`: 1 for each gap, n for every n-th. `limit`: bytes.
    """

    gate: GateState
    limit: int
    patience_s: float
    every: int
    reason: str


@dataclass(frozen=True, slots=True)
class State:
    """What the law remembers of one GPU."""

    phase: Phase = Phase.IDLE
    guarantee: int = 0
    opportunistic: int = 0
    cycles: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    leaks: tuple[float, ...] = ()
    baseline_s: float | None = None
    noise: float = 0.0
    """The spread of a single step, relative to the baseline."""
    level: int = 0
    every: int = 1
    halved: bool = False
    next_baseline_s: float = 0.0
    retrial_at_s: float = math.inf
    until_s: float = math.inf
    rest_s: float = 0.0
    slowdown: float | None = None
    over_from_s: float = math.inf
    """Since when the opportunistic job has held more than the guarantee job leaves."""
    peak: int = 0
    """The most that guarantee jobs have held. It counts without one until `returns_until_s`."""
    returns_until_s: float = -math.inf


def decide(state: State, seen: Seen, rules: Rules | None = None) -> tuple[State, Order]:
    """The next state and the order, by what is seen now."""
    rules = rules or Rules()
    state = _with_peak(_newcomers(state, seen), seen, rules)
    guarantee = seen.guarantee
    if guarantee is None or state.phase in (Phase.FREE, Phase.IDLE):
        return state, _without_a_pair(state, seen, rules)
    if guarantee.age_s > rules.stale_s:
        # Nothing is concluded from what it told before: it may be stopped, or gone.
        closed = _order(state, seen, guarantee, rules, GateState.CLOSED)
        return state, replace(
            closed, reason=f"the guarantee job has told nothing for {guarantee.age_s:.1f} s"
        )
    state = _over(_remember(state, seen, guarantee, rules), seen, guarantee, rules)
    if seen.now_s - state.over_from_s >= rules.over_s:
        evicted = _order(state, seen, guarantee, rules, GateState.EVICTED)
        return state, replace(evicted, reason="the opportunistic job held what the guarantee job needs")
    state = _STEPS[state.phase](state, seen, rules)
    gate = GateState.GAPS if state.phase is Phase.SHARING else GateState.CLOSED
    return state, _order(state, seen, guarantee, rules, gate)


def _newcomers(state: State, seen: Seen) -> State:
    """Begin anew whenever somebody came or left."""
    guarantee = seen.guarantee.identity if seen.guarantee else 0
    opportunistic = seen.opportunistic.identity if seen.opportunistic else 0
    if not (guarantee and opportunistic):
        phase = Phase.FREE if opportunistic else Phase.IDLE
        return State(phase, guarantee, opportunistic, peak=state.peak, returns_until_s=state.returns_until_s)
    if (guarantee, opportunistic) == (state.guarantee, state.opportunistic):
        return state
    return State(Phase.WARMING, guarantee, opportunistic, peak=state.peak)


def _with_peak(state: State, seen: Seen, rules: Rules) -> State:
    """Remember what guarantee jobs have held, for the next one on this GPU."""
    if seen.guarantee is not None:
        peak = max(state.peak, seen.guarantee.peak)
        return replace(state, peak=peak, returns_until_s=seen.now_s + rules.return_s)
    return state if seen.now_s < state.returns_until_s else replace(state, peak=0)


def _over(state: State, seen: Seen, guarantee: GuaranteeSeen, rules: Rules) -> State:
    """Note since when the opportunistic job has held too much. A context alone is never too much."""
    job = seen.opportunistic
    room = _all_but_headroom(seen.total, guarantee.peak, rules)
    is_over = job is not None and not job.moved and job.memory > max(room, CONTEXT)
    return replace(state, over_from_s=min(state.over_from_s, seen.now_s) if is_over else math.inf)


def _without_a_pair(state: State, seen: Seen, rules: Rules) -> Order:
    if state.phase is Phase.FREE and seen.complete:
        return Order(
            GateState.OPEN, _all_but_headroom(seen.total, state.peak, rules), 0.0, 1, state.phase.value
        )
    reason = (
        state.phase.value if seen.complete else "waiting for the jobs of this GPU to introduce themselves"
    )
    return Order(GateState.CLOSED, 0, FAR / 1e9, 1, reason)


def _remember(state: State, seen: Seen, guarantee: GuaranteeSeen, rules: Rules) -> State:
    leaks = seen.opportunistic.leaks if seen.opportunistic else ()
    kept = max(rules.steady_steps, rules.judge_steps, rules.baseline_steps[1] + 1)
    return replace(
        state,
        cycles=(*state.cycles, *guarantee.cycles)[-kept:],
        gaps=(*state.gaps, *guarantee.gaps)[-rules.remembered :],
        leaks=(*state.leaks, *leaks)[-rules.remembered :],
    )


def _warm(state: State, seen: Seen, rules: Rules) -> State:
    count = rules.steady_steps
    if len(state.cycles) < count or not is_steady(state.cycles[-count:], rules.steady_change):
        return state
    state = _with_baseline(state, state.cycles[-count:])
    return replace(
        _share(state),
        level=1,
        leaks=(),
        next_baseline_s=seen.now_s + _baseline_interval(state, rules),
        retrial_at_s=seen.now_s + rules.retrial_s,
    )


def _judge(state: State, seen: Seen, rules: Rules) -> State:
    if seen.now_s >= state.next_baseline_s:
        closed_s = 3 * (_baseline_count(state, rules) + 1) * (state.baseline_s or 0.0)
        return replace(state, phase=Phase.BASELINE, cycles=(), until_s=seen.now_s + max(closed_s, 0.1))
    if seen.now_s >= state.retrial_at_s:
        state = replace(state, leaks=(), retrial_at_s=math.inf)
    if len(state.cycles) < rules.judge_steps:
        return state
    slowdown = statistics.median(state.cycles) / (state.baseline_s or 1.0) - 1
    state = replace(state, slowdown=slowdown, cycles=())
    if slowdown <= rules.tolerance + 2 * state.noise / math.sqrt(rules.judge_steps):
        return _calm(state, rules)
    if not state.halved:
        return replace(state, halved=True, every=state.every * 2, level=max(1, state.level // 2))
    return _rest(state, seen, rules)


def _calm(state: State, rules: Rules) -> State:
    """Rise by one step: first the memory, then the gaps."""
    if state.level < rules.rises:
        return replace(state, level=state.level + 1)
    return replace(state, every=max(1, state.every // 2), halved=state.every > 2, rest_s=0.0)


def _rest(state: State, seen: Seen, rules: Rules) -> State:
    rest_s = min(max(rules.rest_s, 2 * state.rest_s), rules.longest_rest_s)
    return replace(
        state, phase=Phase.RESTING, level=0, every=1, halved=False, cycles=(), rest_s=rest_s,
        until_s=seen.now_s + rest_s,
    )  # fmt: skip


def _wait(state: State, seen: Seen, rules: Rules) -> State:
    return replace(state, phase=Phase.WARMING, cycles=()) if seen.now_s >= state.until_s else state


def _measure(state: State, seen: Seen, rules: Rules) -> State:
    """Take the baseline anew. Its first step is left out: the gate closed within it."""
    count = _baseline_count(state, rules) + 1
    if len(state.cycles) >= count:
        state = _mixed_baseline(state, state.cycles[1:])
    elif seen.now_s < state.until_s:
        return state
    return replace(_share(state), leaks=(), next_baseline_s=seen.now_s + _baseline_interval(state, rules))


def _share(state: State) -> State:
    return replace(state, phase=Phase.SHARING, cycles=(), until_s=math.inf)


_STEPS = {Phase.WARMING: _warm, Phase.SHARING: _judge, Phase.BASELINE: _measure, Phase.RESTING: _wait}


def _with_baseline(state: State, cycles: Sequence[float]) -> State:
    middle = statistics.median(cycles)
    low, _, high = statistics.quantiles(cycles, n=4)
    return replace(state, baseline_s=middle, noise=(high - low) / 1.35 / middle if middle > 0 else 0.0)


def _mixed_baseline(state: State, cycles: Sequence[float]) -> State:
    """A few steps are noisier than the first baseline: they count half."""
    return replace(state, baseline_s=((state.baseline_s or 0.0) + statistics.median(cycles)) / 2)


def _baseline_count(state: State, rules: Rules) -> int:
    """How many steps a new baseline takes: within its share of the time, if possible."""
    least, most = rules.baseline_steps
    budget_s = rules.baseline_every_s * rules.baseline_share
    return max(least, min(most, int(budget_s / max(state.baseline_s or 0.0, 1e-6)) - 1))


def _baseline_interval(state: State, rules: Rules) -> float:
    """Seconds to the next baseline: a longer time if its steps would take more than their share."""
    closed_s = (_baseline_count(state, rules) + 1) * (state.baseline_s or 0.0)
    return max(rules.baseline_every_s, closed_s / rules.baseline_share)


def is_steady(cycles: Sequence[float], change: float) -> bool:
    """Whether steps have settled: the medians of both halves differ by at most `change`, a fraction."""
    half = len(cycles) // 2
    first, second = statistics.median(cycles[:half]), statistics.median(cycles[half:])
    return abs(first - second) <= change * min(first, second)


def patience_s(gaps: Sequence[float], leaks: Sequence[float], rules: Rules) -> float:
    """Seconds that a gap must last before it is filled: none where nearly all gaps are long enough.

    A gap that must have lasted as long as a gap has to be costs nothing if it is shorter, and otherwise
    half of it at most. The first leaks have to be measured: until then, every gap is filled.
    """
    if len(leaks) < rules.trials:
        return 0.0
    needed_s = rules.leak_factor * statistics.fmean(leaks)
    return 0.0 if gaps and _first_decile(gaps) >= needed_s else needed_s


def _first_decile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 10]


def _all_but_headroom(total: int, peak: int, rules: Rules) -> int:
    return max(0, total - peak - math.ceil(total * rules.headroom))


def _order(state: State, seen: Seen, guarantee: GuaranteeSeen, rules: Rules, gate: GateState) -> Order:
    limit = _all_but_headroom(seen.total, guarantee.peak, rules) * state.level // rules.rises
    patience = patience_s(state.gaps, state.leaks, rules)
    return Order(gate, limit, patience, state.every, state.phase.value)
