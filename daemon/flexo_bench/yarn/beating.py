"""Makes many simulated processes beat at one interval, in a few threads, and counts how late they are."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

Beat = Callable[[], None]


class Beating:
    """Calls each of `beats` once an interval, spread evenly over it, until `stop`.

    A thread that an exception ends is kept in `failed`. `late_s`: by how much each beat was late.
    """

    def __init__(self, beats: Sequence[Beat], interval_s: float, threads: int) -> None:
        self.late_s: list[float] = []
        self.failed: list[BaseException] = []
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(beats[number::threads],), daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, after the beats that have begun."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def take_late_s(self) -> list[float]:
        """The latenesses since the last call."""
        taken, self.late_s = self.late_s, []
        return taken

    def _run(self, beats: Sequence[Beat]) -> None:
        if not beats:
            return
        began, apart_s = time.monotonic(), self._interval_s / len(beats)
        try:
            for turn, beat in enumerate(itertools.cycle(beats)):
                due = began + turn * apart_s
                wait_s = due - time.monotonic()
                if self._stop.wait(max(0.0, wait_s)):
                    return
                beat()
                self.late_s.append(max(0.0, -wait_s))
        except BaseException as error:
            self.failed.append(error)
            raise
