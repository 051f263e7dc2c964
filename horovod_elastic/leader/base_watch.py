"""The state of a base whose agents are silent: it has ended, is suspended, or its nodes are lost.

Only a leader in a satellite asks the cluster. The leader waits for a suspended base, whose workers go on
where they stand when the cluster resumes it. What the others train without it would be lost with their
satellites.
"""

from __future__ import annotations

from collections.abc import Callable

from horovod_elastic import threads
from horovod_elastic.platforms.base import BaseState, Refused
from horovod_elastic.trace import say_error

POLL_INTERVAL_S = 5.0
ANSWER_BOUND_S = 15.0
"""After this time without an answer of the cluster, the base is assumed to run."""
BACK_WITHIN_S = 10.0
"""Time for the agents of a resumed base to be heard again."""


class BaseWatch:
    """Polls the cluster while the base is silent. For the leader's thread, to which `post` passes answers."""

    def __init__(self, ask: Callable[[], BaseState], post: Callable[[Callable[[], None]], None]) -> None:
        """`ask`: the request to the cluster. It may take long, and raise Refused."""
        self._ask = ask
        self._post = post
        self._silent_since: float | None = None
        self._asked_at: float | None = None
        self._asking = False
        self._state: BaseState | None = None
        """The base's state in the cluster's last answer during this silence; None: no answer yet."""
        self._wait_until = 0.0

    @property
    def ended(self) -> bool:
        """Whether the cluster has said that the base has ended."""
        return self._state is BaseState.ENDED

    def look(self, silent: bool, now: float) -> None:
        """Poll the cluster if it is time to. Call it often. `silent`: no agent of the base is heard."""
        if not silent:
            self._silent_since = self._asked_at = self._state = None
            return
        if self._silent_since is None:
            self._silent_since, self._wait_until = now, now + ANSWER_BOUND_S
        if self._asking or (self._asked_at is not None and now < self._asked_at + POLL_INTERVAL_S):
            return
        self._asking, self._asked_at = True, now
        threads.start(self._look, name="look-at-base", failed=self._failed)

    def waited_for(self, now: float) -> bool:
        """Whether the base is suspended, was suspended a moment ago, or may be (no answer has come yet)."""
        if self._silent_since is None or self.ended:
            return False
        return self._state is BaseState.SUSPENDED or now < self._wait_until

    def _look(self) -> None:
        try:
            state = self._ask()
        except Refused:
            self._post(lambda: self._answered(None))
        else:
            self._post(lambda: self._answered(state))

    def _failed(self, error: Exception) -> None:
        say_error(error)
        self._post(lambda: self._answered(None))

    def _answered(self, state: BaseState | None) -> None:
        """Take the cluster's answer. `state`: None if the cluster did not answer."""
        self._asking = False
        if self._silent_since is None or self._asked_at is None:
            return  # the base was heard again meanwhile
        state = state or self._state or BaseState.RUNS
        if state is BaseState.RUNS:
            resumed = self._state is BaseState.SUSPENDED
            if self._state is None or resumed:
                self._wait_until = self._asked_at + (BACK_WITHIN_S if resumed else 0.0)
        self._state = state
