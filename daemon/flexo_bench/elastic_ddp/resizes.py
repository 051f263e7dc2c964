"""Part `resizes`: a rival's third worker joins, leaves and is killed, again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flexo_bench.elastic_ddp.results import AROUND, JOIN, KILL, LEAVE, Changed
from flexo_bench.elastic_ddp.rivals import BIG, SMALL, Contender, training
from flexo_bench.runtime.pauses import Change, NoChange, Pause, pause
from flexo_bench.runtime.rivals import BOUND_S, POLL_S, RivalFailed, running, wait_until_settled
from flexo_bench.runtime.worklog import WorkLog

SETTLED = 20
"""Steps of every worker between two changes."""
BEFORE_S = 10.0
"""Time before a change from which undisturbed steps are taken."""

Tell = Callable[[str], None]


def measure(rival: Contender, cycles: int, samples: int, folder: Path, tell: Tell) -> Iterator[Changed]:
    """Change the rival's workers. Raises RivalFailed."""
    order = (JOIN, LEAVE, JOIN, KILL) if rival.after_kill == SMALL else (JOIN, KILL, LEAVE)
    with running(rival, training(rival.name, folder / rival.name, samples), SMALL) as log:
        wait_until_settled(rival, log, SMALL, SETTLED)
        for cycle in range(cycles):
            for kind in order:
                cost = _cost(rival, log, _change(rival, log, kind))
                if kind == KILL:
                    rival.calm(log)
                    wait_until_settled(rival, log, rival.after_kill, SETTLED, time.time())
                tell(
                    f"{rival.name:13} {kind:5} {cycle + 1:2} of {cycles}: {cost.before} to {cost.after}"
                    f" workers, paused {cost.pause_s:7.3f} s, cost {cost.around_s:7.3f} s in all"
                )
                yield Changed(rival.name, kind, cost)


def _change(rival: Contender, log: WorkLog, kind: str) -> Change:
    if kind == JOIN:
        return Change(SMALL, BIG, rival.resize(BIG))
    if kind == LEAVE:
        return Change(BIG, SMALL, rival.resize(SMALL))
    return Change(BIG, rival.after_kill, rival.kill_third(log.read()))


def _cost(rival: Contender, log: WorkLog, change: Change) -> Pause:
    """The cost of the change, once enough steps after it are known. Raises RivalFailed."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        log.read()
        near = [batch for batch in log.batches if batch.at > change.asked_at - BEFORE_S]
        try:
            cost = pause(near, change, by_rank=rival.by_rank, around=AROUND)
        except NoChange:
            continue
        useful_at = change.asked_at + cost.first_useful_s
        if math.isfinite(cost.around_s) and log.settled(change.after, SETTLED, useful_at):
            return cost
    raise RivalFailed(
        f"{rival.name} does not go from {change.before} to {change.after} workers\n{rival.said()}"
    )
