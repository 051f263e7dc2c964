"""The allowed transitions: the states of workers, agents, changes and the job itself, as tables. Pure.

A table is the only place that says which state an event leads to. Everything else holds a `Machine` and
reports events to it. An event that the table does not allow in the present state raises.
docs/site/reference_states.py draws the tables.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


class NoSuchTransition(Exception):
    """An event came in a state in which the table does not allow it."""


@dataclass(frozen=True)
class Table(Generic[S, E]):
    """All transitions of one kind of thing. `of`: name of that kind, for people."""

    of: str
    rows: dict[S, dict[E, S]]

    def after(self, state: S, event: E) -> S:
        """The state to which `event` leads from `state`. Raises NoSuchTransition."""
        try:
            return self.rows[state][event]
        except KeyError:
            raise NoSuchTransition(f"{self.of}, {state.value}: '{event.value}' cannot happen") from None

    def transitions(self) -> Iterator[tuple[S, E, S]]:
        """All transitions, each as (state before, event, state after)."""
        for state, events in self.rows.items():
            for event, then in events.items():
                yield state, event, then


class Machine(Generic[S, E]):
    """One thing in one state of a table. Only events of the table move it."""

    def __init__(self, table: Table[S, E], begins: S) -> None:
        self._table = table
        self._state = begins

    @property
    def state(self) -> S:
        """The present state."""
        return self._state

    def happens(self, event: E) -> None:
        """Move to the state that the table says. Raises NoSuchTransition; the state is then unchanged."""
        self._state = self._table.after(self._state, event)


# --- a worker --------------------------------------------------------------------------------------------


class WorkerState(enum.Enum):
    """The life of one worker process, as the leader sees it."""

    UNKNOWN = "unknown"
    """The worker is older than this leader, which has not heard of all workers yet."""
    STARTING = "starting"
    READY = "ready"
    """The worker waits to be called: a founder in hvd.init, a warm newcomer, or one that stepped aside."""
    TRAINING = "training"
    ARRIVED = "arrived"
    """The worker is back at its last commit, after its generation broke."""
    LEAVING = "leaving"
    FINISHED = "finished"
    """The worker's training function has returned; its process still runs."""
    GONE = "gone"


class WorkerEvent(enum.Enum):
    """The events of a worker."""

    STARTS = "it says that it is starting"
    WAITS = "it waits to be called"
    TRAINS = "it says that it trains"
    ARRIVES = "it is back at its last commit"
    FINISHES = "its training function returns"
    CALLED = "it is called into the next generation"
    STEPS_ASIDE = "it is to leave the generation and wait"
    LEAVES = "it is told to leave"
    EXITS = "its process ends"


WORKER = Table[WorkerState, WorkerEvent](
    "a worker",
    {
        WorkerState.UNKNOWN: {
            WorkerEvent.STARTS: WorkerState.STARTING,
            WorkerEvent.WAITS: WorkerState.READY,
            WorkerEvent.TRAINS: WorkerState.TRAINING,
            WorkerEvent.ARRIVES: WorkerState.ARRIVED,
            WorkerEvent.FINISHES: WorkerState.FINISHED,
            WorkerEvent.STEPS_ASIDE: WorkerState.STARTING,
            WorkerEvent.EXITS: WorkerState.GONE,
        },
        WorkerState.STARTING: {
            WorkerEvent.WAITS: WorkerState.READY,
            WorkerEvent.LEAVES: WorkerState.LEAVING,
            WorkerEvent.EXITS: WorkerState.GONE,
        },
        WorkerState.READY: {
            WorkerEvent.CALLED: WorkerState.TRAINING,
            WorkerEvent.LEAVES: WorkerState.LEAVING,
            WorkerEvent.EXITS: WorkerState.GONE,
        },
        WorkerState.TRAINING: {
            WorkerEvent.CALLED: WorkerState.TRAINING,
            WorkerEvent.ARRIVES: WorkerState.ARRIVED,
            WorkerEvent.FINISHES: WorkerState.FINISHED,
            WorkerEvent.STEPS_ASIDE: WorkerState.STARTING,
            WorkerEvent.LEAVES: WorkerState.LEAVING,
            WorkerEvent.EXITS: WorkerState.GONE,
        },
        WorkerState.ARRIVED: {
            WorkerEvent.CALLED: WorkerState.TRAINING,
            WorkerEvent.FINISHES: WorkerState.FINISHED,
            WorkerEvent.LEAVES: WorkerState.LEAVING,
            WorkerEvent.EXITS: WorkerState.GONE,
        },
        WorkerState.LEAVING: {WorkerEvent.EXITS: WorkerState.GONE},
        WorkerState.FINISHED: {
            WorkerEvent.TRAINS: WorkerState.TRAINING,  # a second training function after the first one
            WorkerEvent.CALLED: WorkerState.TRAINING,
            WorkerEvent.LEAVES: WorkerState.LEAVING,
            WorkerEvent.EXITS: WorkerState.GONE,
        },
        WorkerState.GONE: {},
    },
)


# --- an agent --------------------------------------------------------------------------------------------


class AgentState(enum.Enum):
    """The life of one agent, and of its node. An agent that comes back after it was dismissed begins anew."""

    SERVING = "serving"
    LEAVING = "leaving"
    """The agent has to go as soon as its workers have left."""
    DISMISSED = "dismissed"


class AgentEvent(enum.Enum):
    """The events of an agent."""

    SENT_AWAY = "its node has to go"
    DISMISSED = "nothing is left to do on its node"
    LOST = "its node, or the connection to it, is lost"


AGENT = Table[AgentState, AgentEvent](
    "an agent",
    {
        AgentState.SERVING: {
            AgentEvent.SENT_AWAY: AgentState.LEAVING,
            AgentEvent.DISMISSED: AgentState.DISMISSED,
            AgentEvent.LOST: AgentState.DISMISSED,
        },
        AgentState.LEAVING: {
            AgentEvent.DISMISSED: AgentState.DISMISSED,
            AgentEvent.LOST: AgentState.DISMISSED,
        },
        AgentState.DISMISSED: {},
    },
)


# --- a change --------------------------------------------------------------------------------------------


class Stage(enum.Enum):
    """The stage of an attempt to change to the next generation."""

    PREPARING = "preparing"
    """The members of the next generation build its communicator."""
    ASKING = "asking"
    """The leader asks rank 0 which mini-batch it is at."""
    PROPOSED = "proposed"
    """The leader asks the training workers not to pass a boundary."""
    AGREED = "agreed"
    """The leader has told all members to switch."""
    DROPPED = "dropped"


class StageEvent(enum.Enum):
    """The events of a change."""

    PREPARED = "all have built the communicator, and some train meanwhile"
    PREPARED_AT_REST = "all have built the communicator, and nobody trains"
    ANSWERED = "rank 0 says where it is"
    PASSED = "somebody has passed the proposed boundary"
    PROMISED = "all who train have promised not to pass it"
    DROPPED = "it is given up"


CHANGE = Table[Stage, StageEvent](
    "a change",
    {
        Stage.PREPARING: {
            StageEvent.PREPARED: Stage.ASKING,
            StageEvent.PREPARED_AT_REST: Stage.AGREED,
            StageEvent.DROPPED: Stage.DROPPED,
        },
        Stage.ASKING: {
            StageEvent.ANSWERED: Stage.PROPOSED,
            StageEvent.DROPPED: Stage.DROPPED,
        },
        Stage.PROPOSED: {
            StageEvent.PASSED: Stage.ASKING,
            StageEvent.PROMISED: Stage.AGREED,
            StageEvent.DROPPED: Stage.DROPPED,
        },
        Stage.AGREED: {},
        Stage.DROPPED: {},
    },
)


# --- the job ---------------------------------------------------------------------------------------------
# The job is in one state of each of the four tables below at the same time.


class Leading(enum.Enum):
    """The leader's knowledge of the job."""

    TAKING_OVER = "taking over"
    """The leader is new and has not heard of all workers yet."""
    LEADING = "leading"
    ENDED = "ended"


class LeadingEvent(enum.Enum):
    """The events of the leader's knowledge."""

    ALL_KNOWN = "everybody is known, or the bound is over"
    OVER = "the job is over"


LEADING = Table[Leading, LeadingEvent](
    "the leader",
    {
        Leading.TAKING_OVER: {LeadingEvent.ALL_KNOWN: Leading.LEADING},
        Leading.LEADING: {LeadingEvent.OVER: Leading.ENDED},
        Leading.ENDED: {},
    },
)


class GenerationState(enum.Enum):
    """The state of the present generation."""

    NONE = "none yet"
    WHOLE = "whole"
    BROKEN = "broken"
    """A member is gone, or a collective failed: the remaining members go back to their last commit."""
    PAUSED = "paused"
    """An opportunistic job has too few workers: nobody trains, and the base keeps the state."""


class GenerationEvent(enum.Enum):
    """The events of the present generation."""

    FORMED = "the word for the next generation is given"
    FOUND = "a new leader finds it"
    BREAKS = "a member is gone, or a collective failed"
    PAUSES = "too few workers are left, and the state is in the base"
    BEGINS_ANEW = "the base has no state: training begins from the start"


GENERATION = Table[GenerationState, GenerationEvent](
    "the generation",
    {
        GenerationState.NONE: {
            GenerationEvent.FORMED: GenerationState.WHOLE,
            GenerationEvent.FOUND: GenerationState.WHOLE,
            GenerationEvent.PAUSES: GenerationState.PAUSED,  # a new leader finds a parked state
        },
        GenerationState.WHOLE: {
            GenerationEvent.FORMED: GenerationState.WHOLE,
            GenerationEvent.BREAKS: GenerationState.BROKEN,
            GenerationEvent.PAUSES: GenerationState.PAUSED,
        },
        GenerationState.BROKEN: {
            GenerationEvent.FORMED: GenerationState.WHOLE,
            GenerationEvent.BREAKS: GenerationState.BROKEN,
            GenerationEvent.PAUSES: GenerationState.PAUSED,
        },
        GenerationState.PAUSED: {
            GenerationEvent.FORMED: GenerationState.WHOLE,
            GenerationEvent.BEGINS_ANEW: GenerationState.NONE,
        },
    },
)


class ScriptState(enum.Enum):
    """The progress of the training script."""

    OPEN = "open"
    """Workers may join, and one that dies is replaced."""
    DOOMED = "doomed"
    """A founder failed before its training loop. A new worker would not help: the job ends."""
    FINISHING = "finishing"
    """The training function has returned in a worker: no worker joins any more."""
    DOOMED_FINISHING = "doomed and finishing"
    UNSURE = "unsure"
    """Members were missing at a takeover, and no worker was in its training loop. They may have ended, or be
    lost."""


class ScriptEvent(enum.Enum):
    """The events of the training script."""

    FAILS_EARLY = "a founder fails before its training loop"
    FINISHES = "its training function returns, or a worker exits with 0"
    MEMBERS_MISSING = "a new leader misses members, and nobody is in its training loop"
    IN_LOOP = "somebody is in its training loop after all"


SCRIPT = Table[ScriptState, ScriptEvent](
    "the script",
    {
        ScriptState.OPEN: {
            ScriptEvent.FAILS_EARLY: ScriptState.DOOMED,
            ScriptEvent.FINISHES: ScriptState.FINISHING,
            ScriptEvent.MEMBERS_MISSING: ScriptState.UNSURE,
        },
        ScriptState.DOOMED: {
            ScriptEvent.FAILS_EARLY: ScriptState.DOOMED,
            ScriptEvent.FINISHES: ScriptState.DOOMED_FINISHING,
        },
        ScriptState.FINISHING: {ScriptEvent.MEMBERS_MISSING: ScriptState.UNSURE},
        ScriptState.DOOMED_FINISHING: {},
        ScriptState.UNSURE: {ScriptEvent.IN_LOOP: ScriptState.OPEN},
    },
)


class Activity(enum.Enum):
    """Whether the leader acts."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    """Part of the job is suspended: the leader begins nothing and gives no worker up."""


class ActivityEvent(enum.Enum):
    """The events of the job's nodes."""

    SUSPENDED = "part of the job is suspended"
    RESUMED = "all of it runs again"


ACTIVITY = Table[Activity, ActivityEvent](
    "the nodes",
    {
        Activity.ACTIVE: {ActivityEvent.SUSPENDED: Activity.SUSPENDED},
        Activity.SUSPENDED: {ActivityEvent.RESUMED: Activity.ACTIVE},
    },
)

TABLES: tuple[Table[Any, Any], ...] = (WORKER, AGENT, CHANGE, LEADING, GENERATION, SCRIPT, ACTIVITY)
