"""Kills an agent that stands still, so that its workers end with it and its job can replace it.

An agent that is stopped (SIGSTOP) or hangs can neither be told anything nor notice it: `flexo run` waits for
it and its workers train with nobody to speak for them. So a process of its own, which needs nothing but its
pipe from the agent, expects a byte there every second. Run by its path, without site packages: it is small.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

STANDS_STILL_S = 20.0
"""Longer than the other agents take to go on without it, and much longer than any work of its main thread."""


class Guardian:
    """The agent's side."""

    def __init__(self, stands_still_s: float = STANDS_STILL_S) -> None:
        # `-S` and `-I`: neither the user's site packages nor the working directory are looked at.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(stands_still_s)],
            stdin=subprocess.PIPE,
            bufsize=0,
        )

    def tick(self) -> None:
        """Still here. Call it every second."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it was killed: the agent goes on without
            self._process.stdin.write(b".")

    def close(self) -> None:
        """The agent ends, and may take its time for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _guard(agent: int, stands_still_s: float) -> None:
    # Slurm's SIGTERM is for the agent, and reaches everybody of the step.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    pipe = sys.stdin.fileno()
    while os.getppid() == agent:
        readable, _, _ = select.select([pipe], [], [], stands_still_s)
        if not readable and os.getppid() == agent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
            return
        if not os.read(pipe, 4096):
            return


if __name__ == "__main__":
    _guard(int(sys.argv[1]), float(sys.argv[2]))
