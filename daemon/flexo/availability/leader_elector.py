"""Elects the active flexod: a thread that waits until this flexod may take the lease, and then keeps it.

An elector is for one turn. Once it has lost the lease, the lease stays lost, and nothing that began under it
may act any more. flexod makes another elector when all of that has ended.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from flexo.availability.lease_protocol import LeaseProtocol
from flexo.clusters.base import MayNotAct
from flexo_protos.leader_leases.lease import LeaderLease, LeaseStore, StoreUnavailable

_BEATS: Final = 5
"""The renewals in the time of one lease."""
_LOOKS: Final = 10
"""The checks of a waiting flexod in the time of one lease."""

_log = structlog.get_logger("flexo.availability")


def uninterrupted() -> float:
    """Seconds of a clock that goes on while the process is stopped and while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElector:
    """A LeadershipGuard that elects. `start` begins to wait. Any thread may call everything but `start` and
    `leave`."""

    def __init__(
        self, store: LeaseStore, address: str, lease_s: float, clock: Callable[[], float] = uninterrupted
    ) -> None:
        """`address`: the address by which others know this flexod, host:port."""
        self._store = store
        self._clock = clock
        self._lease_s = lease_s
        self._protocol = LeaseProtocol(secrets.token_hex(8), address, lease_s)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader-elector", daemon=True)
        self.trouble = ""
        """The reason why the store cannot be used at present; "" when it can."""
        self.failed = ""
        """The error that has ended the thread; "" if none has. After it, nothing renews or takes the lease
        any more: the process has to end, so that it is started again."""

    def start(self) -> None:
        """Begin to wait for this flexod's turn."""
        self._thread.start()

    @property
    def epoch(self) -> int:
        """See LeadershipGuard; 0 before this flexod's turn."""
        return self._protocol.term

    @property
    def active(self) -> LeaderLease | None:
        """The lease as last seen; None if nobody holds it, or its holder has released it."""
        seen = self._protocol.seen
        return None if seen is None or seen.released else seen

    @property
    def lost(self) -> bool:
        """Whether this flexod's turn has come and is over."""
        return self._protocol.won and not self.holds()

    def holds(self) -> bool:
        """See LeadershipGuard."""
        return self._protocol.holds(self._clock())

    def check(self) -> None:
        """See LeadershipGuard."""
        if not self.holds():
            active = self.active
            who = active.address if active else "nobody"
            raise MayNotAct(f"this flexod is not the active one any more; who holds the lease: {who}")

    def leave(self, patience_s: float) -> None:
        """Release the lease, if this flexod has it. It acts no more, and no other flexod has to wait.

        `patience_s`: how long to wait for a store that hangs. After that, the lease runs out by itself.
        """
        self._leaving.set()
        self._thread.join(patience_s)

    def step(self) -> None:
        """Read the lease once, and write what is due. For the elector's own thread, and for tests."""
        try:
            found = self._store.read()
            wanted = self._protocol.wanted(found, self._clock(), time.time())
            if wanted is not None:
                began = self._clock()
                if self._store.swap(found.version, wanted).lease == wanted:
                    self._protocol.wrote(wanted, began)
        except StoreUnavailable as error:
            self._note(str(error))
        except Exception as error:  # whatever it is: without this thread a standby never takes over
            self._note(f"{self._store.name}: {type(error).__name__}: {error}", error)
        else:
            self._note("")

    def _run(self) -> None:
        try:
            self._take_part()
            self._store.close()
        except BaseException as error:
            self.failed = f"{type(error).__name__}: {error}"
            _log.critical("the thread that keeps flexod's lease has failed", why=self.failed, exc_info=True)

    def _take_part(self) -> None:
        self.step()
        while not self._leaving.wait(self._lease_s / (_BEATS if self._protocol.won else _LOOKS)):
            self.step()
            if self.lost:
                return
        self._say_farewell()

    def _say_farewell(self) -> None:
        try:
            found = self._store.read()
            farewell = self._protocol.farewell(found.lease, self._clock())
            if farewell is not None:
                self._store.swap(found.version, farewell)
        except StoreUnavailable as error:
            self._note(str(error))

    def _note(self, trouble: str, error: Exception | None = None) -> None:
        """Keep `trouble`, and log a change of it. `error`: an unexpected error, for the log."""
        if trouble != self.trouble:
            if trouble:
                _log.warning(
                    "the store of the active flexod's lease cannot be used", why=trouble, exc_info=error
                )
            else:
                _log.info("the store of the active flexod's lease can be used again")
        self.trouble = trouble
