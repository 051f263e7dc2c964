"""The supervisor: the process that the cluster starts on each node of a job. Workers are its children, so
they outlive their agent.

Workers need no agent to train. The agent, with all its threads and connections, is a child of the supervisor
too. An agent that is killed, crashes or hangs is started again, and finds its workers where they were.
Training goes on meanwhile. A cluster ends the rest of a part of a job when the part's first process ends, and
workers must not outlive their part. So workers and the agent die with the supervisor, which therefore does as
little as possible. The supervisor is run by its path, without site packages, and needs only the standard
library. It speaks with the agent in lines of JSON over a pair of sockets (supervisor_link.py is the other
end).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SOCKET_VARIABLE = "FLEXO_KEEPER_SOCKET"
"""Environment variable: the agent's file descriptor that is connected to the supervisor."""
NODE_VARIABLE = "FLEXO_NODE"
"""Environment variable: the cluster's name of this node (platforms/base.py)."""
STARTS_WITHIN_S = 60.0
"""Longest time until an agent's first message: on a busy machine, its imports can take long."""
STANDS_STILL_S = 8.0
"""Longest silence of an agent, much longer than any work of its main thread. The next agent is there before a
leader gives the workers up."""
ONCE_MORE_S = 2.0
"""Further time for a silent agent: both processes may have been stopped together."""
STARTS_AGAIN = 5
FIRST_PAUSE_S = 0.2
"""Pause before an agent's first restart; each further pause is twice as long."""
STEADY_S = 600.0
"""After this time without a crash, earlier crashes do not count any more."""
AWAY_PAUSE_S = 3.0
AWAY_S = 60.0
"""Longest time for which the supervisor retries an agent that cannot work now: workers train on meanwhile."""
ENDS_WITHIN_S = 90.0
"""Longest silence of an agent that has said that it ends, and longest wait for its process afterwards."""
COMMAND_NOT_RUN = 127
"""Exit code of a worker whose command cannot be run, as in a shell."""
EXIT_CANNOT_WORK = 78
"""Exit code of an agent whose restart would not help (EX_CONFIG)."""
EXIT_CRASHED = 70
"""Exit code of an agent that an exception has ended; the supervisor starts it again (EX_SOFTWARE)."""
EXIT_TRY_AGAIN = 75
"""Exit code of an agent that lacks something its predecessor had, as when munged is away (EX_TEMPFAIL)."""
ENDS_FOR_GOOD = (0, 2, EXIT_CANNOT_WORK)
"""Exit codes after which no agent is started: it was dismissed, had a wrong command line, or cannot work."""
_FOLDERS = ("/tmp", "/dev/shm")
"""Folders of the node itself for the socket. Their names are short: a socket's has at most 107 characters."""
_NAME = re.compile(r"flexo-[0-9a-f]{32}")
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes] | None
    note: str
    """A text of the agent's, which the supervisor gives to the next agent."""
    spoke: bool = False
    """Whether the worker has connected to its agent."""
    exit_code: int | None = None
    """Exit code of a worker that has ended; the entry is kept until the agent has passed the code on."""
    error: str = ""
    """Why the worker's command could not be run; "" if it could."""


class Supervisor:
    """See the module."""

    def __init__(
        self, agent: Sequence[str], *, pass_signals: bool = False, stands_still_s: float = STANDS_STILL_S
    ) -> None:
        """`agent`: the agent's command line. `pass_signals`: the cluster signals this process alone."""
        self._agent = list(agent)
        self._pass_signals = pass_signals
        self._stands_still_s = stands_still_s
        self._workers: dict[str, _Worker] = {}
        self._folder = _Folder()
        self._endpoint = f"unix:{self._folder.path}/agent"
        self._secret = secrets.token_hex(16)
        self._terminated = False
        self._terminated_told = False
        self._ending = False
        """Whether the agent has said that it ends."""
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._unread = b""
        self._wakeup, wake = os.pipe()
        for end in (self._wakeup, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # Handlers rather than SIG_IGN, because children inherit ignored signals.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        for number in _PASSED_ON:
            signal.signal(number, self._signalled)

    def run(self) -> int:
        """Run until the agent ends for good; return its exit code."""
        patience = _RestartBackoff()
        try:
            code = self._run_agent(again=False)
            while not self._ending and code not in ENDS_FOR_GOOD:
                if (pause_s := patience.pause_s(code)) is None:
                    break
                _say(f"the agent has ended with {code}; it is started again, and its workers train on")
                self._wait(pause_s)
                code = self._run_agent(again=True)
            return code
        finally:
            self._end_workers()
            self._folder.remove()

    # --- the agent ----------------------------------------------------------------------------------------

    def _run_agent(self, *, again: bool) -> int:
        self._link, theirs = socket.socketpair()
        self._unread = b""
        try:
            self._process = subprocess.Popen(
                self._agent,
                env={**os.environ, SOCKET_VARIABLE: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                preexec_fn=_become_the_agent,
            )
        except OSError as error:  # no process or memory is left, perhaps only for now
            _say(f"the agent cannot be started: {error}")
            self._link.close()
            self._link = None
            return EXIT_CRASHED
        finally:
            theirs.close()
        self._greet(again)
        self._serve()
        self._link.close()
        self._link = None
        try:
            code = self._process.wait(ENDS_WITHIN_S if self._ending else 0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = None
        return code if code >= 0 else 128 - code

    def _greet(self, again: bool) -> None:
        workers = [
            {"id": worker_id, "note": worker.note, "spoke": worker.spoke}
            for worker_id, worker in self._workers.items()
        ]
        self._tell(
            endpoint=self._endpoint,
            secret=self._secret,
            again=again,
            terminated=self._terminated,
            workers=workers,
        )
        self._terminated_told = self._terminated
        for worker_id, worker in self._workers.items():
            if worker.exit_code is not None:
                self._tell_end(worker_id, worker)

    def _serve(self) -> None:
        """Carry out the agent's commands until it is gone. Kill it if it is silent for too long."""
        assert self._link is not None
        patience_s = STARTS_WITHIN_S
        while True:
            ready = self._ready(ENDS_WITHIN_S if self._ending else patience_s)
            if self._link in ready:
                patience_s = self._stands_still_s
                if not self._hear():
                    return
            elif not ready:
                if self._ending or patience_s == ONCE_MORE_S:
                    _say("the agent has stood still for too long and is killed")
                    assert self._process is not None
                    self._process.kill()
                    return
                patience_s = ONCE_MORE_S

    def _hear(self) -> bool:
        """Carry out the commands that have arrived. False when the agent's end of the socket is closed."""
        assert self._link is not None
        try:
            received = self._link.recv(1 << 16)
        except OSError:
            received = b""
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(received)

    def _obey(self, message: Mapping[str, Any]) -> None:
        worker_id = message.get("id", "")
        worker = self._workers.get(worker_id)
        match message["do"]:
            case "start":
                self._start(worker_id, message)
            case "kill" if worker is not None:
                _signal_group(worker, signal.SIGKILL)
            case "signal" if worker is not None and worker.exit_code is None and worker.process is not None:
                worker.process.send_signal(message["number"])
            case "spoke" if worker is not None:
                worker.spoke = True
            case "forget":
                self._workers.pop(worker_id, None)
            case "end":
                self._ending = True
            case "alive":
                self._tell(alive=True)

    def _tell(self, **message: object) -> None:
        if self._link is not None:
            with contextlib.suppress(OSError):  # the agent is gone; `_hear` notices that
                self._link.sendall(json.dumps(message).encode() + b"\n")

    def _signalled(self, number: int, frame: object) -> None:
        self._terminated = self._terminated or number == signal.SIGTERM
        if self._pass_signals and self._process is not None:
            self._process.send_signal(number)

    # --- workers ------------------------------------------------------------------------------------------

    def _start(self, worker_id: str, order: Mapping[str, Any]) -> None:
        environment = {**os.environ, **order["environment"]}
        for name in order["without"]:
            environment.pop(name, None)
        worker = self._workers[worker_id] = _Worker(None, order["note"])
        try:
            worker.process = subprocess.Popen(
                order["command"],
                env=environment,
                preexec_fn=_become_a_deaf_worker if order["deaf"] else _become_a_worker,
            )
        except OSError as error:
            worker.exit_code, worker.error = COMMAND_NOT_RUN, error.strerror or str(error)
            self._tell_end(worker_id, worker)

    def _look_after_workers(self) -> None:
        for worker_id, worker in self._workers.items():
            if worker.process is None or worker.exit_code is not None:
                continue
            if os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                # A zombie keeps its process id. So the signal reaches its own group: processes that the
                # worker left running would keep the GPU.
                _signal_group(worker, signal.SIGKILL)
                worker.exit_code = worker.process.wait()
                self._tell_end(worker_id, worker)

    def _tell_end(self, worker_id: str, worker: _Worker) -> None:
        self._tell(ended=worker_id, code=worker.exit_code, error=worker.error)

    def _end_workers(self) -> None:
        for worker in self._workers.values():
            if worker.process is not None and worker.exit_code is None:
                _signal_group(worker, signal.SIGKILL)
                worker.process.wait()

    # --- waiting ------------------------------------------------------------------------------------------

    def _ready(self, timeout_s: float) -> list[Any]:
        sources: list[Any] = [self._wakeup] if self._link is None else [self._wakeup, self._link]
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if self._wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 1 << 16)
            self._look_after_workers()
            if self._terminated and not self._terminated_told and self._link is not None:
                self._terminated_told = True  # told here too: the agent may not have had its handler yet
                self._tell(terminated=True)
        return ready

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._ready(left)


class _RestartBackoff:
    """Decides on the pause before an agent that has ended is started again."""

    def __init__(self) -> None:
        self._crashes = 0
        self._crashed_at = 0.0
        self._away_since: float | None = None

    def pause_s(self, code: int) -> float | None:
        """Seconds to wait after the agent's end with `code`; None: do not start it again."""
        now = time.monotonic()
        if code != EXIT_TRY_AGAIN:
            self._away_since = None
            self._crashes = 1 if now > self._crashed_at + STEADY_S else self._crashes + 1
            self._crashed_at = now
            return FIRST_PAUSE_S * 2 ** (self._crashes - 1) if self._crashes <= STARTS_AGAIN else None
        if self._away_since is None:
            self._away_since = now
        return AWAY_PAUSE_S if now < self._away_since + AWAY_S else None


class _Folder:
    """The folder of the socket at which the agents listen, one after the other.

    It is locked while this process lives. No other user can enter the folder, or listen there while no agent
    does. At an abstract name anybody could. Raises OSError.
    """

    def __init__(self) -> None:
        for place in _FOLDERS:
            try:
                self.path, self._lock = _made(place)
            except OSError:
                if place == _FOLDERS[-1]:
                    raise
            else:
                _sweep(place)
                return

    def remove(self) -> None:
        """Remove the folder, with the last socket in it."""
        _remove(self.path)
        os.close(self._lock)


def _made(place: str) -> tuple[str, int]:
    """A new folder, and the descriptor that holds its lock. The folder gets its name last, so that no
    `_sweep` removes it before it is locked.
    """
    name = f"flexo-{secrets.token_hex(16)}"
    os.mkdir(f"{place}/.{name}", 0o700)  # noqa: PTH102 (pathlib would be imported for this alone)
    lock = os.open(f"{place}/.{name}", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(f"{place}/.{name}", f"{place}/{name}")  # noqa: PTH104
    return f"{place}/{name}", lock


def _sweep(place: str) -> None:
    """Remove the folders that killed supervisors of this user have left in `place`."""
    for entry in os.scandir(place):
        with contextlib.suppress(OSError):
            if _NAME.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(entry.path)
                finally:
                    os.close(lock)


def _remove(folder: str) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        inside = [(os.unlink, entry.path) for entry in entries]  # sockets, and what an Aggregator has written
        for remove, path in (*inside, (os.rmdir, folder)):
            remove(path)


def _signal_group(worker: _Worker, number: int) -> None:
    if worker.process is not None and worker.exit_code is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, number)


def _die_with_the_supervisor() -> None:
    """Have the kernel kill this child when the supervisor dies; called between fork and exec.

    Where the cluster tracks processes by parentage, an orphaned process would keep its GPU.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become_the_agent() -> None:
    """Prepare the agent's process: it ignores SIGTERM until it has a handler.

    Otherwise a planned end during its imports would look like a crash.
    """
    _die_with_the_supervisor()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _become_a_worker() -> None:
    """Prepare a worker's process: give it a process group of its own."""
    os.setpgid(0, 0)
    _die_with_the_supervisor()


def _become_a_deaf_worker() -> None:
    """Prepare a satellite's worker: ignore SIGTERM until the script's Python is up (worker/sigterm.py)."""
    _become_a_worker()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _say(text: str) -> None:
    """Print a line as trace.say does, which cannot be imported here. Drop a line that would raise or wait."""
    line = f"flexo: on {os.environ.get(NODE_VARIABLE) or os.uname().nodename}: {text}\n"
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0.0)[1]:
            os.write(2, line.encode(errors="backslashreplace")[: select.PIPE_BUF])


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -I -S supervisor.py`, with the agent's arguments."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    agent = [sys.executable, "-m", "horovod_elastic", "agent", *arguments]
    return Supervisor(agent, pass_signals="--pass-signals" in own).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
