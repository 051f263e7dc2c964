"""A worker's part in the protocol with its leader (leader/membership). Pure: no threads, no network.

The state holds where the worker stands, what it has promised, and the generation that it has been called to.
The session passes it the leader's messages, and sends its answers to the leader. The training loop asks the
state at every mini-batch boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

from horovod_elastic.phase import Phase


@dataclass(frozen=True, slots=True)
class Called:
    """The leader's word, a Go message, which calls the worker to a generation (workers.proto, Go)."""

    generation: int
    at: int = 0
    sync: bool = True
    leave: str = ""
    aside: bool = False
    parks: bool = False
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question or a proposal of the leader (workers.proto, Accepted)."""

    generation: int
    at: int
    boundary: int
    passed: bool


@dataclass
class ParticipantState:
    """A worker's state in the protocol (see the module).

    Boundaries are counted in each generation from 1; `boundary` is the last one passed.
    """

    phase: Phase = Phase.STARTING
    generation: int = 0
    rank: int = 0
    size: int = 0
    commits: int = 0
    """The commits of the state that the worker has saved and could restore."""
    received: int = 0
    """The commits of the state that the worker was given and has not saved yet; 0: there is no such state."""
    progress: float = 0.0
    boundary: int = 0
    in_loop: bool = False
    holding: bool = False
    called: int = 0
    promised: int = 0
    """The boundary that the worker has promised not to pass without a word of the leader; 0: none."""
    word: Called | None = None
    """The leader's word that was given and was not taken yet."""
    taken: bool = False
    """Whether a word was taken, and the worker is on its way into the generation that it names."""
    broken: int = 0
    """The last generation that is known to be broken. All generations before it are broken, too."""

    @property
    def going(self) -> bool:
        """Whether a word of the leader is still to be carried out.

        A leader takes a worker that has arrived, and is not going, for one that comes back from the last
        generation that it was called to. So this stays true from the word until the worker has entered.
        """
        return self.word is not None or self.taken

    # --- heard from the leader --------------------------------------------------------------------------

    def proposed(self, generation: int, at: int) -> Answer:
        """Answer where this worker is and (at > 0) promise to wait at boundary `at`, unless it has passed."""
        here = self.phase is Phase.TRAINING and generation == self.generation
        if at == 0:
            return Answer(generation, 0, self.boundary, not here)
        passed = not here or self.boundary >= at
        if not passed:
            self.promised = at
        return Answer(generation, at, self.boundary, passed)

    def withdrawn(self, generation: int, at: int) -> None:
        """Cancel the promise to wait at boundary `at`; at = 0: cancel any promise."""
        if at in (0, self.promised):
            self.promised = 0

    def given(self, word: Called) -> None:
        """Take the leader's word, and keep it until its boundary, or until a waiting thread takes it."""
        self.called = max(self.called, word.generation)
        waits = self.phase in (Phase.READY, Phase.ARRIVED)
        if (self.phase is Phase.TRAINING and word.at > 0) or (waits and word.at == 0) or word.leave:
            self.word = word

    def is_broken(self, generation: int) -> bool:
        """Note that a worker of that generation is gone.

        Returns whether this worker trains in that generation, or in one before it.
        """
        self.broken = max(self.broken, generation)
        return self.phase is Phase.TRAINING and self.generation <= generation

    # --- asked by the training loop -----------------------------------------------------------------------

    def may_pass(self) -> bool:
        """Whether the worker may pass the next boundary now, or carry out the leader's word there."""
        due = self.boundary + 1
        self.holding = self.promised == due and (self.word is None or self.word.at != due)
        return not self.holding

    def pass_boundary(self) -> Called | None:
        """Pass the next boundary. Returns the leader's word if it is to be carried out there, else None."""
        self.boundary += 1
        if self.word is not None and self.word.at == self.boundary:
            return self._take()
        return None

    def wait_ready(self) -> None:
        """Begin to wait for a call: in a founder's hvd.init, in a warm newcomer, or after stepping aside."""
        self.phase, self.taken = Phase.READY, False

    def go_back(self) -> None:
        """Leave the generation after a failed collective, with the state of the last commit."""
        self.phase, self.promised, self.received, self.taken = Phase.ARRIVED, 0, 0, False
        if self.word is not None and not self.word.leave:
            self.word = None

    def take_call(self) -> Called | None:
        """Take the leader's word in a waiting thread, if there is one."""
        return self._take() if self.word is not None and (self.word.at == 0 or self.word.leave) else None

    def enter(self, word: Called, rank: int, size: int) -> None:
        """Enter the new generation."""
        self.phase, self.generation, self.taken = Phase.TRAINING, word.generation, False
        self.rank, self.size = rank, size
        self.boundary = self.promised = 0

    def begins(self, commits: int, *, saved: bool) -> None:
        """Note that the worker has the state of `commits` commits. Not `saved`: it cannot restore it yet."""
        self.commits, self.received = (commits, 0) if saved else (0, commits)

    def has_saved(self) -> None:
        """Note that the worker has saved its state, even one that it was given."""
        self.commits, self.received = max(self.commits, self.received), 0

    def committed(self) -> None:
        """Count one more committed mini-batch."""
        self.has_saved()
        self.commits += 1

    def finish(self) -> None:
        """Note that the training function has returned."""
        self.phase, self.promised, self.word, self.taken = Phase.FINISHED, 0, None, False

    def _take(self) -> Called | None:
        word, self.word, self.promised = self.word, None, 0
        self.taken = True
        return word
