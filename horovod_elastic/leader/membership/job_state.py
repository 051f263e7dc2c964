"""What is true of the job as a whole: four machines, and the numbers that go with them. Pure."""

from __future__ import annotations

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
"""Exit codes of those who only lost a peer: an uncaught HorovodInternalError, or the native core's abort."""


class JobState:
    """See the module. `taking_over`: the job runs already, under an earlier leader."""

    def __init__(self, taking_over: bool) -> None:
        self._leading = Machine(LEADING, Leading.TAKING_OVER if taking_over else Leading.LEADING)
        self._generation = Machine(GENERATION, GenerationState.NONE)
        self._script = Machine(SCRIPT, ScriptState.OPEN)
        self._activity = Machine(ACTIVITY, Activity.ACTIVE)
        self.generation = 0
        """The number of the present generation; 0: none yet."""
        self.broken_at = 0.0
        """When the present generation broke."""
        self._suspended_at = 0.0
        self.limit: int | None = None
        """Train with so many workers at most; None: with all."""
        self.failure: int | None = None
        """Exit code of the worker that failed first in this generation: the job's, if it ends so."""
        self.scalable = False
        """Somebody has entered hvd.elastic.run."""
        self.commits = 0
        self.progress = 0.0

    # --- the leader ------------------------------------------------------------------------------------

    @property
    def taking_over(self) -> bool:
        """A new leader has not heard of everybody yet."""
        return self._leading.state is Leading.TAKING_OVER

    @property
    def ended(self) -> bool:
        """The job is over."""
        return self._leading.state is Leading.ENDED

    def all_known(self) -> None:
        """A new leader has heard of everybody."""
        self._leading.happens(LeadingEvent.ALL_KNOWN)

    def over(self) -> None:
        """The job is over."""
        self._leading.happens(LeadingEvent.OVER)

    # --- the generation --------------------------------------------------------------------------------

    @property
    def founded(self) -> bool:
        """There has been a generation."""
        return self.generation > 0

    @property
    def broken(self) -> bool:
        """The present generation is broken: it ends."""
        return self._generation.state is GenerationState.BROKEN

    def formed(self, generation: int, commits: int) -> None:
        """The word for this generation is given."""
        self._generation.happens(GenerationEvent.FORMED)
        self.generation, self.commits, self.failure = generation, commits, None

    def found(self, generation: int) -> None:
        """A new leader finds this generation; 0: none yet."""
        self.generation = generation
        if self.founded:
            self._generation.happens(GenerationEvent.FOUND)

    def breaks(self, now: float) -> bool:
        """The present generation is broken; whether that is news."""
        news = not self.broken
        self._generation.happens(GenerationEvent.BREAKS)
        if news:
            self.broken_at = now
        return news

    # --- the script ------------------------------------------------------------------------------------

    @property
    def finishing(self) -> bool:
        """Nobody joins any more."""
        return self._script.state in (
            ScriptState.FINISHING,
            ScriptState.DOOMED_FINISHING,
            ScriptState.UNSURE,
        )

    @property
    def doomed(self) -> bool:
        """A founder failed before its training loop: the job ends."""
        return self._script.state in (ScriptState.DOOMED, ScriptState.DOOMED_FINISHING)

    @property
    def unsure(self) -> bool:
        """Members were missing at a takeover: ended, or lost?"""
        return self._script.state is ScriptState.UNSURE

    def script(self, event: ScriptEvent) -> None:
        """Something has happened to the training script."""
        self._script.happens(event)

    def note_failure(self, exit_code: int) -> None:
        """Keep the cause: the first failure, unless it was a bystander's and this one is the script's own."""
        if self.failure is None or (self.failure in BYSTANDERS and exit_code > 1):
            self.failure = exit_code

    # --- suspended nodes -------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Part of the job is suspended: nothing begins, and nobody is given up."""
        return self._activity.state is Activity.SUSPENDED

    def suspend(self, now: float) -> None:
        """Part of the job is suspended."""
        self._activity.happens(ActivityEvent.SUSPENDED)
        self._suspended_at = now

    def resume(self, now: float) -> float:
        """All of it runs again; how many seconds it was suspended."""
        self._activity.happens(ActivityEvent.RESUMED)
        stood_s = now - self._suspended_at
        self.broken_at += stood_s
        return stood_s
