"""The batch script of a satellite: runs its one step, and keeps Slurm's words on a planned end to itself.

When Slurm or the job's leader ends a satellite, slurmstepd and srun say so as if something had failed:
"error: *** STEP 26.0 ON t3 CANCELLED ***", "forcing job termination", "Exited with exit code 143".
Standard error of the step comes through here. Such lines are held back until the step's end, and dropped
if that was planned. Everything else is passed on as it comes.

The leader asks a satellite to end with SIGUSR1 (scancel --batch). To a SIGTERM, slurmstepd would add words
of its own where nobody can drop them. Run by a path, without site packages: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

END = signal.SIGUSR1
"""The leader's word that this satellite is to end."""
_SLURM = (b"slurmstepd", b"srun: ")
_OF_AN_END = re.compile(
    rb"slurmstepd\S*: error: \*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED AT \S+( DUE TO PREEMPTION)? \*\*\*"
    rb"|srun: (Job step aborted: .*|forcing job termination|got SIG\w+|Terminating .*|Force Terminated .*)"
    rb"|srun: error: \S+: (task|tasks) \S+: (Exited with exit code 143|Terminated|Killed)"
)
"""Not: time limits, nodes that fail, memory that runs out, and what else Slurm has to say."""


class Filter:
    """Sorts a stream of bytes: what may be passed on at once, and Slurm's words on an end."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self._line = b""
        """The beginning of a line that may become one of Slurm's."""
        self._within = False
        """In the middle of a line that is not."""

    def feed(self, data: bytes) -> bytes:
        """What of it, and of what came before, is to be passed on now."""
        passed = []
        for piece in data.splitlines(keepends=True):
            if self._within:
                passed.append(piece)
            else:
                self._line += piece
                if self._line.endswith(b"\n"):
                    passed.append(self._sorted())
                elif not any(slurm.startswith(self._line[: len(slurm)]) for slurm in _SLURM):
                    passed.append(self._line)
                    self._line = b""
                else:
                    continue
            self._within = not piece.endswith((b"\n", b"\r"))
        return b"".join(passed)

    def end(self) -> bytes:
        """What is left of the last line."""
        return self._sorted() if self._line else b""

    def _sorted(self) -> bytes:
        line, self._line = self._line, b""
        if _OF_AN_END.match(line):
            self.held.append(line)
            return b""
        return line


class Satellite:
    """See the module."""

    def __init__(self, step: Sequence[str]) -> None:
        self._filter = Filter()
        self._planned = False
        self._process: subprocess.Popen[bytes] | None = None
        signal.signal(END, self._to_end)
        signal.signal(signal.SIGTERM, self._ended_by_slurm)
        self._process = subprocess.Popen(step, stderr=subprocess.PIPE)
        if self._planned:
            self._process.terminate()

    def run(self) -> int:
        """Until the step has ended: its exit code, or 0 where it was to end."""
        assert self._process is not None
        assert self._process.stderr is not None
        source = self._process.stderr.fileno()
        while data := os.read(source, 1 << 16):
            _pass_on(self._filter.feed(data))
        code = self._process.wait()
        _pass_on(self._filter.end())
        if code == 0 or self._planned:
            return 0
        for line in self._filter.held:
            _pass_on(line)
        return code if code > 0 else 128 - code

    def _to_end(self, number: int, frame: object) -> None:
        self._planned = True
        if self._process is not None:
            self._process.terminate()  # to srun the order to end its step

    def _ended_by_slurm(self, number: int, frame: object) -> None:
        """Cancelled, or back to whom it was taken from: its step has had SIGTERM too, and leaves in order."""
        self._planned = True


def _pass_on(data: bytes) -> None:
    """A full disk must not end the step."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -I -S agent/satellite.py srun ...`."""
    return Satellite(arguments).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
