"""The events that flexod writes down, and their kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexo.model.queue import JobKey

ROUTINE: Final = "extend"
"""The kind of events that each satellite causes again and again."""
OF_NODES: Final = "node"
"""The kind of events on nodes and their states, which some clusters hide (PrivateData)."""
KINDS: Final = {
    "daemon": "flexod began or ended, read its configuration again, or had its clock set",
    "grow": "a job is granted workers",
    "shrink": "a grant is taken back",
    "left": "a satellite has ended, as it was to",
    "lost": "a satellite has ended, unasked",
    "release": "a satellite that was held, as all for shared GPUs are, may start",
    "adopt": "a satellite that an earlier flexod granted stands",
    "failure": "a leader gave a grant back",
    "end": "a job has ended: how, when, and what it had",
    ROUTINE: "the time limit of a satellite is extended",
    "cancel": "a satellite is cancelled whose job is gone, or a job that only says that it is one",
    "wait": "a job waits, or has no more workers, for this reason; or nothing is kept for a pending job",
    "silent": "a job has committed no batch for long",
    OF_NODES: "idle GPUs of nodes stay idle, whatever jobs want more, and why",
    "scale": "a job is capped, or scaled out or in by hand",
    "profile": "a profile has ended",
    "checkpoint": "a checkpoint was written that somebody asked for",
    "slow": "a GPU held a job up",
    "restart": "workers failed, and were started again",
    "order": "priorities of pending jobs are set",
    "trouble": "something is wrong, or well again",
    "journal": "entries are missing",
    "lend": "a server is lent to training",
    "call back": "a server on loan is called back",
    "reopen": "a server that was called back stays on loan",
    "vacate": "workers are to leave a server on loan",
    "save": "a base is asked for a checkpoint, and what came of it",
    "preempt": "a base on a server on loan is preempted",
    "escalate": "a deadline is near: what is left on a server is ended by force",
    "returned": "a server is back",
    "repair": "what was remembered of loans was not so",
    "demand": "what inference needs, and who says so, has changed",
    "aggregator": "a pool Aggregator has come, or is gone",
    "assign": "other Aggregators sum, or are to sum, a job's gradients from now on, and why",
    "revert": "a job goes back to its former Aggregators or its own, because a job lost too much",
    "allocate": "a job is started, resized or preempted, in a simulation",
    "drop": "a job is refused, in a simulation",
}
"""The kinds of events."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the event store. `at` is seconds since the epoch."""

    at: float
    kind: str
    """One of KINDS."""
    job: JobKey | None
    text: str
