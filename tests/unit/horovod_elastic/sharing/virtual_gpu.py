"""A GPU in virtual time with a guarantee job and an opportunistic job, under the real law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from horovod_elastic.sharing import law
from horovod_elastic.sharing.law import GuaranteeSeen, OpportunisticSeen, Order, Phase, Rules, Seen
from horovod_elastic.sharing.pages import GateState

GIB = 1 << 30
TICK_S = 0.05


@dataclass
class Guarantee:
    """A job that computes for `busy_s` and waits for `gap_s`, step after step."""

    busy_s: float = 0.1
    gap_s: float = 0.1
    peak: int = 20 * GIB
    identity: int = 1
    jitter: Callable[[int], float] = lambda _: 1.0
    steps: list[float] = field(default_factory=list)


@dataclass
class Opportunistic:
    """A job that works `leak_s` into a flight if it worked in the gap before, and slows by `drag`
    besides.

    `drag`: a part of the guarantee job's busy time, for what no gate prevents (memory bandwidth,
    caches).
    """

    leak_s: float = 0.0003
    drag: float = 0.0
    live: int = 4 * GIB
    memory: int = 0
    moved: int = 0
    identity: int = 2
    worked_s: float = 0.0


@dataclass
class VirtualGpu:
    """Runs both jobs step by step; the law is asked every TICK_S of virtual time."""

    guarantee: Guarantee | None = field(default_factory=Guarantee)
    opportunistic: Opportunistic | None = field(default_factory=Opportunistic)
    total: int = 80 * GIB
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.state = law.State()
        self.order: Order | None = None
        self.orders: list[tuple[float, Phase, Order]] = []
        self.closed_s = 0.0
        self.stale_s = 0.0
        self._next_tick = 0.0
        self._cycles: list[float] = []
        self._gaps: list[float] = []
        self._leaks: list[float] = []
        self._filled = False

    def run(self, seconds: float) -> None:
        """Go on for some seconds."""
        end = self.now_s + seconds
        while self.now_s < end:
            self.step() if self.guarantee is not None else self._pass(0.1)

    def step(self) -> None:
        """One step of the guarantee job: a flight and a gap."""
        job, beside = self.guarantee, self.opportunistic
        assert job is not None
        leak = beside.leak_s if beside is not None and self._filled else 0.0
        drag = beside.drag if beside is not None and self._filled else 0.0
        if leak:
            self._leaks.append(leak)
        busy = job.busy_s * job.jitter(len(job.steps)) * (1 + drag) + leak
        self._pass(busy)
        self._filled = self._fills(job.gap_s)
        if self._filled and beside is not None and self.order is not None:
            beside.worked_s += max(0.0, job.gap_s - self.order.patience_s)
        self._pass(job.gap_s)
        self._gaps.append(job.gap_s)
        job.steps.append(busy + job.gap_s)
        self._cycles.append(busy + job.gap_s)

    def _fills(self, gap_s: float) -> bool:
        order, beside = self.order, self.opportunistic
        if order is None or beside is None or order.gate is GateState.CLOSED:
            return False
        if order.gate is GateState.OPEN:
            return True
        turn = len(self.guarantee.steps) % order.every == 0 if self.guarantee else True
        return turn and gap_s > order.patience_s and beside.live <= order.limit

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self._next_tick:
            self._next_tick = self.now_s + TICK_S
            self.look()

    def look(self) -> Order:
        """Ask the law."""
        job, beside = self.guarantee, self.opportunistic
        seen_job = seen_beside = None
        if job is not None:
            seen_job = GuaranteeSeen(
                job.identity, tuple(self._cycles), tuple(self._gaps), job.peak, self.stale_s
            )
        if beside is not None:
            seen_beside = OpportunisticSeen(beside.identity, tuple(self._leaks), beside.memory, beside.moved)
        self._cycles, self._gaps, self._leaks = [], [], []
        seen = Seen(self.now_s, self.total, seen_job, seen_beside)
        self.state, self.order = law.decide(self.state, seen, self.rules)
        self.orders.append((self.now_s, self.state.phase, self.order))
        return self.order

    def slowdown(self, last: int = 100) -> float:
        """How much longer the last steps took than they would alone."""
        assert self.guarantee is not None
        alone = self.guarantee.busy_s + self.guarantee.gap_s
        steps = self.guarantee.steps[-last:]
        return sum(steps) / len(steps) / alone - 1
