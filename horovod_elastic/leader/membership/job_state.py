"""The state of the job as a whole: four state machines, and the numbers that belong to them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from horovod_elastic.leader.membership.states import (
    ACTIVITY,
    GENERATION,
    LEADING,
    SCRIPT,
    Activity,
    ActivityEvent,
    GenerationEvent,
    GenerationState,
    Leading,
    LeadingEvent,
    Machine,
    ScriptEvent,
    ScriptState,
)

BYSTANDERS = (1, -6)
"""Exit codes of workers that only lost a peer: uncaught HorovodInternalError, or the native core's abort."""
KILLED = frozenset({-9, -15, 128 + 9, 128 + 15})
"""Exit codes of a process that SIGKILL or SIGTERM has ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that failed. `who`: its rank and node. `how`: its exit code or signal, for people."""

    exit_code: int
    who: str
    how: str


class JobState:
    """See the module.

    `taking_over`: whether the job runs already, under an earlier leader. `minimum`: the number of workers
    below which an opportunistic job pauses; 0: the base has workers, and the job does not pause. `parked`:
    the commits of the state that the base keeps; None if it keeps none.
    """

    def __init__(self, taking_over: bool, minimum: int = 0, parked: int | None = None) -> None:
        self._leading = Machine(LEADING, Leading.TAKING_OVER if taking_over else Leading.LEADING)
        self._generation = Machine(GENERATION, GenerationState.NONE)
        self._script = Machine(SCRIPT, ScriptState.OPEN)
        self._activity = Machine(ACTIVITY, Activity.ACTIVE)
        self.generation = 0
        """The number of the present generation; 0: none yet."""
        self.to_renew = False
        """Whether another generation is due whoever joins or goes: a member of the present one has died, or
        its sums are to be made elsewhere."""
        self.broken_at = 0.0
        """Time when the present generation broke."""
        self._suspended_at = 0.0
        self.limit: int | None = None
        """Largest number of workers to train with; None: no limit."""
        self.failure: Failure | None = None
        """The first worker that failed in this generation; the job may end with its exit code."""
        self.fixed_why = ""
        """Why the script can never be resized, as a worker has said."""
        self.scalable = False
        """Whether a worker has entered hvd.elastic.run."""
        self.commits = 0
        self.progress = 0.0
        self.minimum = minimum
        self.parked = parked
        self.vain_resumes = 0
        """Number of consecutive generations from the parked state that broke although no worker was lost."""

    # --- the leader ------------------------------------------------------------------------------------

    @property
    def taking_over(self) -> bool:
        """Whether this leader is new and has not heard of all workers yet."""
        return self._leading.state is Leading.TAKING_OVER

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self._leading.state is Leading.ENDED

    def all_known(self) -> None:
        """Note that this new leader has heard of all workers."""
        self._leading.happens(LeadingEvent.ALL_KNOWN)

    def over(self) -> None:
        """Note that the job is over."""
        self._leading.happens(LeadingEvent.OVER)

    # --- the generation --------------------------------------------------------------------------------

    @property
    def founded(self) -> bool:
        """Whether there has been a generation, from whose state training goes on."""
        return self._generation.state is not GenerationState.NONE

    @property
    def broken(self) -> bool:
        """Whether the present generation is broken, and so ends."""
        return self._generation.state is GenerationState.BROKEN

    @property
    def paused(self) -> bool:
        """Whether nobody trains, because fewer workers than the minimum are left."""
        return self._generation.state is GenerationState.PAUSED

    def formed(self, generation: int, commits: int) -> None:
        """Note that `generation` begins: its members are told to switch."""
        self._generation.happens(GenerationEvent.FORMED)
        self.generation, self.commits, self.failure = generation, commits, None
        self.to_renew = False

    def found(self, generation: int) -> None:
        """Note the generation that a new leader finds; 0: none yet."""
        self.generation = generation
        if generation:
            self._generation.happens(GenerationEvent.FOUND)

    def pauses(self, generation: int) -> None:
        """Note that nobody trains any more. `generation`: number of the pause."""
        self._generation.happens(GenerationEvent.PAUSES)
        self.generation, self.failure = generation, None

    def begins_anew(self) -> None:
        """Note that training begins from the start, because no state was parked before the pause."""
        self._generation.happens(GenerationEvent.BEGINS_ANEW)
        self.commits, self.progress, self.scalable = 0, 0.0, False

    def breaks(self, now: float) -> bool:
        """Note that the present generation is broken; return whether that is news."""
        news = not self.broken
        self._generation.happens(GenerationEvent.BREAKS)
        if news:
            self.broken_at = now
        return news

    def loses_member(self) -> None:
        """Note that the present generation goes on without a member, until the next one."""
        self.to_renew, self.failure = True, None

    def renews(self) -> None:
        """Note that the same workers are to have another generation."""
        self.to_renew = True

    # --- the script ------------------------------------------------------------------------------------

    @property
    def finishing(self) -> bool:
        """Whether the script is finishing, so that no worker joins any more."""
        return self._script.state in (
            ScriptState.FINISHING,
            ScriptState.DOOMED_FINISHING,
            ScriptState.UNSURE,
        )

    @property
    def doomed(self) -> bool:
        """Whether a founder failed before its training loop, so that the job ends."""
        return self._script.state in (ScriptState.DOOMED, ScriptState.DOOMED_FINISHING)

    @property
    def unsure(self) -> bool:
        """Whether members were missing at a takeover, which may have ended or be lost."""
        return self._script.state is ScriptState.UNSURE

    def script(self, event: ScriptEvent) -> None:
        """Note an event of the training script."""
        self._script.happens(event)

    @property
    def exit_code(self) -> int:
        """The exit code of the first worker that failed in this generation; 0: none did."""
        return 0 if self.failure is None else self.failure.exit_code

    def note_failure(self, failure: Failure) -> None:
        """Note a failure. The first is kept, unless it was a bystander's and this one is the script's own.

        In an opportunistic job, a bystander's failure gives way also to the loss of a worker.
        """
        code = failure.exit_code
        may_replace = code > 1 or (self.minimum > 0 and code in KILLED)
        if self.failure is None or (self.failure.exit_code in BYSTANDERS and may_replace):
            self.failure = failure

    # --- suspended nodes -------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Whether part of the job is suspended: nothing begins, and no worker is given up."""
        return self._activity.state is Activity.SUSPENDED

    def suspend(self, now: float) -> None:
        """Note that part of the job is suspended."""
        self._activity.happens(ActivityEvent.SUSPENDED)
        self._suspended_at = now

    def resume(self, now: float) -> float:
        """Note that the whole job runs again; return the seconds for which it was suspended."""
        self._activity.happens(ActivityEvent.RESUMED)
        stood_s = now - self._suspended_at
        self.broken_at += stood_s
        return stood_s
