"""What the cluster starts on each node of a job: workers belong to it, and so outlive their agent.

Workers need no agent to train. So the agent, with all its threads and connections, is a child like they are:
if it is killed, crashes, or hangs, it is started again, finds its workers where they were, and training has
not noticed. A cluster ends what is left of a part of a job when the part's first process ends, and workers
must not outlive their part: they and the agent die with this process, which therefore does as little as there
is to do. It is run by its path, without site packages, and needs nothing but the standard library. It speaks
with the agent in lines of JSON over a pair of sockets (keeper_link.py is the other end).
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
"""Tells the agent which of its file descriptors leads here."""
NODE_VARIABLE = "FLEXO_NODE"
"""What the cluster calls this node (platforms/base.py)."""
STARTS_WITHIN_S = 60.0
"""Until an agent says its first word: on a busy machine its imports can take longer than what follows."""
STANDS_STILL_S = 8.0
"""Much longer than any work of its main thread; the next one is back before a leader gives its workers up."""
ONCE_MORE_S = 2.0
"""Whoever was stopped together with the agent gives it so long to be heard."""
STARTS_AGAIN = 5
FIRST_PAUSE_S = 0.2
"""Twice as long each further time."""
STEADY_S = 600.0
"""After so long without a crash, those before count no more."""
AWAY_PAUSE_S = 3.0
AWAY_S = 60.0
"""How long an agent that cannot work for now is tried: workers train on without one for no longer."""
ENDS_WITHIN_S = 90.0
"""Silence of an agent that has said that it ends, and its process afterwards."""
COMMAND_NOT_RUN = 127
"""Exit code of a worker whose command cannot be run, as in a shell."""
CANNOT_WORK = 78
"""Exit code of an agent that would not do better if it were started again (EX_CONFIG)."""
CRASHED = 70
"""Exit code of an agent that an exception has ended: it is started again (EX_SOFTWARE)."""
CANNOT_WORK_NOW = 75
"""Exit code of one that lacks what the agent before it had, as when munged is away (EX_TEMPFAIL)."""
ENDS_FOR_GOOD = (0, 2, CANNOT_WORK)
"""Dismissed, started with a wrong command line, or that."""
_FOLDERS = ("/tmp", "/dev/shm")
"""Of the node itself, and with short names: a socket's has at most 107 characters."""
_NAME = re.compile(r"flexo-[0-9a-f]{32}")
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes] | None
    note: str
    """The agent's own, given back to the one after it."""
    spoke: bool = False
    """It has found its agent."""
    exit_code: int | None = None
    """Of one that has ended; it is kept until the agent has passed that on."""
    error: str = ""
    """Why its command could not be run."""


class Keeper:
    """See the module."""

    def __init__(
        self, agent: Sequence[str], *, pass_signals: bool = False, stands_still_s: float = STANDS_STILL_S
    ) -> None:
        """`agent`: its command line. pass_signals: the cluster signals this process alone."""
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
        """The agent has said that it ends."""
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._unread = b""
        self._wakeup, wake = os.pipe()
        for end in (self._wakeup, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # Handlers, because children inherit what is ignored.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        for number in _PASSED_ON:
            signal.signal(number, self._signalled)

    def run(self) -> int:
        """Until the agent ends for good: its exit code."""
        patience = _Patience()
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
        except OSError as error:  # no process or memory is left for it, at the moment perhaps
            _say(f"the agent cannot be started: {error}")
            self._link.close()
            self._link = None
            return CRASHED
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
        """Do as the agent says, until it is gone."""
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
        """False when the agent's end is closed."""
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
            with contextlib.suppress(OSError):  # it is gone, which is noticed when it is listened to
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
            worker.exit_code, worker.error = COMMAND_NOT_RUN, str(error)
            self._tell_end(worker_id, worker)

    def _look_after_workers(self) -> None:
        for worker_id, worker in self._workers.items():
            if worker.process is None or worker.exit_code is not None:
                continue
            if os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                # While it is a zombie its number is nobody else's: what it left running would keep the GPU.
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
                self._terminated_told = True  # the agent may not have listened yet
                self._tell(terminated=True)
        return ready

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._ready(left)


class _Patience:
    """After which pause an agent that has ended is started again."""

    def __init__(self) -> None:
        self._crashes = 0
        self._crashed_at = 0.0
        self._away_since: float | None = None

    def pause_s(self, code: int) -> float | None:
        """After its end with `code`; None: not any more."""
        now = time.monotonic()
        if code != CANNOT_WORK_NOW:
            self._away_since = None
            self._crashes = 1 if now > self._crashed_at + STEADY_S else self._crashes + 1
            self._crashed_at = now
            return FIRST_PAUSE_S * 2 ** (self._crashes - 1) if self._crashes <= STARTS_AGAIN else None
        if self._away_since is None:
            self._away_since = now
        return AWAY_PAUSE_S if now < self._away_since + AWAY_S else None


class _Folder:
    """For the socket at which the agents listen, one after the other; locked while this process lives.

    Nobody else may enter it, nor listen there while no agent does, as anybody could at an abstract name.
    Raises OSError.
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
        """With the last socket in it."""
        _remove(self.path)
        os.close(self._lock)


def _made(place: str) -> tuple[str, int]:
    """A new folder, and what holds its lock. It gets its name last: nobody sweeps it before."""
    name = f"flexo-{secrets.token_hex(16)}"
    os.mkdir(f"{place}/.{name}", 0o700)  # noqa: PTH102 (pathlib would be imported for this alone)
    lock = os.open(f"{place}/.{name}", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(f"{place}/.{name}", f"{place}/{name}")  # noqa: PTH104
    return f"{place}/{name}", lock


def _sweep(place: str) -> None:
    """Remove what this user's keepers have left there that were killed."""
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
    for remove, path in ((os.unlink, f"{folder}/agent"), (os.rmdir, folder)):
        with contextlib.suppress(OSError):
            remove(path)


def _signal_group(worker: _Worker, number: int) -> None:
    if worker.process is not None and worker.exit_code is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, number)


def _die_with_the_keeper() -> None:
    """Between fork and exec. Where processes are tracked by parentage, an orphan would keep its GPU."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become_the_agent() -> None:
    """Deaf to SIGTERM until it listens: a planned end during its imports would look like a crash."""
    _die_with_the_keeper()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _become_a_worker() -> None:
    """A process group of its own besides."""
    os.setpgid(0, 0)
    _die_with_the_keeper()


def _become_a_deaf_worker() -> None:
    """Of a satellite: deaf to SIGTERM until the script's Python is up (worker/sigterm.py)."""
    _become_a_worker()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _say(text: str) -> None:
    """As trace.say, which needs more than there is here: dropped if it would raise, or wait."""
    line = f"flexo: on {os.environ.get(NODE_VARIABLE) or os.uname().nodename}: {text}\n"
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0.0)[1]:
            os.write(2, line.encode(errors="backslashreplace")[: select.PIPE_BUF])


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -I -S keeper.py`, with the agent's arguments."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    agent = [sys.executable, "-m", "horovod_elastic", "agent", *arguments]
    return Keeper(agent, pass_signals="--pass-signals" in own).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
