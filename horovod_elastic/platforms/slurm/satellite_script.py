"""The batch script of a satellite: runs its one step, and drops Slurm's messages on a planned end.

When Slurm or the job's leader ends a satellite, slurmstepd and srun report the end like a failure. They print
"error: *** STEP 26.0 ON t3 CANCELLED ***", "forcing job termination", "Exited with exit code 143". Standard
error of the step comes through this script. The script holds such lines back until the step's end, and drops
them if the end was planned. It passes all other lines on as they come.

The leader asks a satellite to end with SIGUSR1 (scancel --batch). To a SIGTERM, slurmstepd would add messages
that this script cannot drop. The script is run by its path, without site packages, so it uses the standard
library only.
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
"""The signal by which the leader asks this satellite to end."""
_SLURM = (b"slurmstepd", b"srun: ")
_OF_AN_END = re.compile(
    rb"slurmstepd\S*: error: \*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED AT \S+( DUE TO PREEMPTION)? \*\*\*"
    rb"|srun: (launch/slurm: \S+: StepId=\S+ aborted before step completely launched\.)"
    rb"|srun: (Job step aborted: .*|forcing job termination|got SIG\w+|Terminating .*|Force Terminated .*)"
    rb"|srun: error: \S+: (task|tasks) \S+: (Exited with exit code 143|Terminated|Killed)"
)
"""Slurm's lines on a planned end. No line on a time limit, a failed node, memory or the like matches."""


class Filter:
    """Splits a stream of bytes: Slurm's lines on an end are held, and all else is passed on."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self._line = b""
        """The beginning of a line that may become one of Slurm's."""
        self._within = False
        """Whether the stream is in the middle of a line that is not one of Slurm's."""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those to pass on now, of `data` and of earlier calls."""
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
        """The rest of the last line, to be passed on at the end of the stream."""
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
        """Wait until the step has ended; return its exit code, or 0 if its end was planned."""
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
            self._process.terminate()  # for srun, SIGTERM is the order to end its step

    def _ended_by_slurm(self, number: int, frame: object) -> None:
        """Note that Slurm cancels or preempts the satellite. Its step has had SIGTERM too, and leaves."""
        self._planned = True


def _pass_on(data: bytes) -> None:
    """Write `data` to standard error. An error, as on a full disk, must not end the step."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -I -S agent/satellite.py srun ...`."""
    return Satellite(arguments).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
