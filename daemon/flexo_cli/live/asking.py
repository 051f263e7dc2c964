"""Asks flexod for pictures in a thread, so that keys work even while flexod hangs."""

from __future__ import annotations

import threading
import time

from flexo_cli.connection import Daemon, find_address
from flexo_cli.live.picture import Picture, take


class Asking:
    """A thread that fetches pictures and keeps the newest, and the last error. It ends with the program."""

    def __init__(self, daemon: str | None, interval_s: float) -> None:
        """`daemon`: flexod's address, as on the command line."""
        self._daemon = daemon
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._away = ""
        threading.Thread(target=self._ask, name="asking", daemon=True).start()

    @property
    def now(self) -> tuple[Picture | None, str]:
        """The newest picture, None before the first; and "" or why flexod has not answered since."""
        with self._lock:
            return self._picture, self._away

    def _ask(self) -> None:
        flexod: Daemon | None = None
        while True:
            try:
                # a new connection after a failure: a failed one waits longer before each new attempt
                flexod = flexod or Daemon(find_address(self._daemon))
                picture, away = take(flexod, time.time()), ""
            except Exception as error:  # every error must be visible on the screen
                flexod, picture, away = None, None, str(error) or repr(error)
            with self._lock:
                self._picture, self._away = picture or self._picture, away
            time.sleep(self._interval_s)
