"""A worker's part in the protocol with its leader (leader/membership). Pure: no threads, no network.

Where it stands, what it has promised, and what it has been called to. The session feeds it what is heard and
tells the leader what it says; the training loop asks it at every mini-batch boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

from horovod_elastic.phase import Phase


@dataclass(frozen=True, slots=True)
class Called:
    """The leader's word (workers.proto, Go)."""

    generation: int
    at: int = 0
    sync: bool = True
    leave: str = ""
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """To a question or a proposal (workers.proto, Accepted)."""

    generation: int
    at: int
    boundary: int
    passed: bool


@dataclass
class Part:
    """See the module. Boundaries are counted in each generation from 1; `boundary` is the last one passed."""

    phase: Phase = Phase.STARTING
    generation: int = 0
    rank: int = 0
    size: int = 0
    commits: int = 0
    """Of the state that it holds and could come back to."""
    received: int = 0
    """Of the one that it was given and has not saved yet; 0: it has none such."""
    progress: float = 0.0
    boundary: int = 0
    in_loop: bool = False
    holding: bool = False
    called: int = 0
    promised: int = 0
    """The boundary not to be passed without a word; 0: none."""
    word: Called | None = None
    """Given, and not carried out yet."""
    broken: int = 0
    """This generation and all before it are known to be broken."""

    @property
    def going(self) -> bool:
        """Whether a word is still to be carried out."""
        return self.word is not None

    # --- heard from the leader --------------------------------------------------------------------------

    def proposed(self, generation: int, at: int) -> Answer:
        """Where is this worker, and (at > 0) will it wait at boundary `at`?"""
        here = self.phase is Phase.TRAINING and generation == self.generation
        if at == 0:
            return Answer(generation, 0, self.boundary, not here)
        passed = not here or self.boundary >= at
        if not passed:
            self.promised = at
        return Answer(generation, at, self.boundary, passed)

    def withdrawn(self, generation: int, at: int) -> None:
        """The promise is given back; at = 0: whatever it was."""
        if at in (0, self.promised):
            self.promised = 0

    def given(self, word: Called) -> None:
        """The word: kept until the boundary, or until whoever waits for it takes it."""
        self.called = max(self.called, word.generation)
        waits = self.phase in (Phase.READY, Phase.ARRIVED)
        if (self.phase is Phase.TRAINING and word.at > 0) or (waits and word.at == 0) or word.leave:
            self.word = word

    def is_broken(self, generation: int) -> bool:
        """Somebody of that generation is gone; whether this worker is in it, or in one before."""
        self.broken = max(self.broken, generation)
        return self.phase is Phase.TRAINING and self.generation <= generation

    # --- asked by the training loop -----------------------------------------------------------------------

    def may_pass(self) -> bool:
        """Whether the next boundary may be passed, or the word carried out there, now."""
        due = self.boundary + 1
        self.holding = self.promised == due and (self.word is None or self.word.at != due)
        return not self.holding

    def pass_boundary(self) -> Called | None:
        """Pass the next boundary; the word, if it is to be carried out there."""
        self.boundary += 1
        if self.word is not None and self.word.at == self.boundary:
            return self._take()
        return None

    def wait_ready(self) -> None:
        """A founder in hvd.init, a newcomer that is warm, or somebody who stepped aside."""
        self.phase = Phase.READY

    def go_back(self) -> None:
        """A collective failed: out of the generation, with the state of the last commit."""
        self.phase, self.promised, self.received = Phase.ARRIVED, 0, 0
        if self.word is not None and not self.word.leave:
            self.word = None

    def take_call(self) -> Called | None:
        """Whoever waits takes the word, if there is one."""
        return self._take() if self.word is not None and (self.word.at == 0 or self.word.leave) else None

    def enter(self, word: Called, rank: int, size: int) -> None:
        """In the new generation from now on."""
        self.phase, self.generation = Phase.TRAINING, word.generation
        self.rank, self.size = rank, size
        self.boundary = self.promised = 0

    def begins(self, commits: int, *, saved: bool) -> None:
        """It has the state of so many commits; not `saved`: it could not come back to that."""
        self.commits, self.received = (commits, 0) if saved else (0, commits)

    def has_saved(self) -> None:
        """The state that it has, whoever gave it."""
        self.commits, self.received = max(self.commits, self.received), 0

    def committed(self) -> None:
        """One more mini-batch."""
        self.has_saved()
        self.commits += 1

    def finish(self) -> None:
        """The training function has returned."""
        self.phase, self.promised, self.word = Phase.FINISHED, 0, None

    def _take(self) -> Called | None:
        word, self.word, self.promised = self.word, None, 0
        return word
