"""What has become of a base that says nothing: it has ended, is suspended, or its nodes are lost.

Only a leader in a satellite asks. A suspended base is waited for: its workers go on where they stand when
the cluster resumes it, and what the others trained meanwhile without it would be lost with their satellites.
"""

from __future__ import annotations

from collections.abc import Callable

from horovod_elastic import threads
from horovod_elastic.platforms.base import BaseState, Refused
from horovod_elastic.trace import say_error

LOOK_INTERVAL_S = 5.0
ANSWER_BOUND_S = 15.0
"""A base of which the cluster says nothing for so long is taken for one that runs."""
BACK_WITHIN_S = 10.0
"""So long after it was resumed a base's agents may take to be heard again."""


class BaseWatch:
    """Asks the cluster while the base is silent. For the leader's thread; `post` hands it the answers."""

    def __init__(self, ask: Callable[[], BaseState], post: Callable[[Callable[[], None]], None]) -> None:
        """`ask`: may take long, and raise Refused."""
        self._ask = ask
        self._post = post
        self._silent_since: float | None = None
        self._asked_at: float | None = None
        self._asking = False
        self._state: BaseState | None = None
        """As the cluster said last in this silence."""
        self._wait_until = 0.0

    @property
    def ended(self) -> bool:
        """The cluster has said so."""
        return self._state is BaseState.ENDED

    def look(self, silent: bool, now: float) -> None:
        """Call it often; `silent`: nothing is heard of any agent of the base."""
        if not silent:
            self._silent_since = self._asked_at = self._state = None
            return
        if self._silent_since is None:
            self._silent_since, self._wait_until = now, now + ANSWER_BOUND_S
        if self._asking or (self._asked_at is not None and now < self._asked_at + LOOK_INTERVAL_S):
            return
        self._asking, self._asked_at = True, now
        threads.start(self._look, name="look-at-base", failed=self._failed)

    def waited_for(self, now: float) -> bool:
        """Whether the base is suspended, was so a moment ago, or may be so for all that is known yet."""
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
        """`state`: None where the cluster did not answer."""
        self._asking = False
        if self._silent_since is None or self._asked_at is None:
            return  # it was heard again meanwhile
        state = state or self._state or BaseState.RUNS
        if state is BaseState.RUNS:
            resumed = self._state is BaseState.SUSPENDED
            if self._state is None or resumed:
                self._wait_until = self._asked_at + (BACK_WITHIN_S if resumed else 0.0)
        self._state = state
