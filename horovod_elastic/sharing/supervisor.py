"""Runs an opportunistic job, and stops it where it does not stop itself: at a gate that it does not
reach.

A job that uses the GPU, and works for STOP_S without passing a hook while its gate is closed, gets SIGSTOP
with all its processes. It gets SIGCONT when the gate opens. After END_S more with a closed gate it is killed,
because a kernel that hangs goes on in a stopped process. CPU time tells work from waiting: a worker that
waits for others in a collective is at no gate either, and costs nobody anything. If the supervisor dies, the
kernel kills the command (prctl(2), PR_SET_PDEATHSIG), and the layer kills every other process of the job.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from horovod_elastic.sharing import cpu_time, introduction
from horovod_elastic.sharing.environment import SUPERVISOR
from horovod_elastic.sharing.introduction import BadMessage
from horovod_elastic.sharing.pages import GatePage, GateState, GuaranteePage, NoPage, OpportunisticPage, Page
from horovod_elastic.sharing.socket_folder import socket_folder
from horovod_elastic.sharing.watchdog import is_stale

STOP_S, END_S = 2.0, 60.0
LOOK_S = 0.1
KILL_AFTER_S = 5.0
"""From SIGTERM to SIGKILL when somebody ends the supervisor."""
ENDED = 75
"""The exit code if the supervisor has ended the job, and only then (sysexits(3), EX_TEMPFAIL)."""
FAILED = 1
"""The exit code of a command that itself exits with ENDED."""
MINE, ORDER, MET, LOST, ALONE = b"page", b"order", b"met", b"lost", b"alone"
NICE = 19
"""The job's host threads yield, too: its data loaders would take CPU time from the guarantee job's."""
_PR_SET_PDEATHSIG = 1


@dataclass
class Watched:
    """One process of the job, by the pages that its layer has passed on.

    `closed_s`: the seconds that it has worked at a closed gate without a pass, or been stopped for that.
    """

    page: OpportunisticPage
    pid: int = 0
    order: GatePage | None = None
    guarantee: GuaranteePage | None = None
    closed_s: float = 0.0
    passes: int = -1
    cpu_s: float = 0.0

    def look(self, elapsed_s: float, *, stopped: bool) -> None:
        """Look after `elapsed_s` seconds: how long it has worked at a closed gate now."""
        passes, cpu_s = self.page.passes, cpu_time.cpu_s(self.pid)
        if not self.page.started or self.page.waiting or passes != self.passes:
            self.closed_s = 0.0
        elif self.is_closed():
            self.closed_s += elapsed_s if stopped else min(elapsed_s, max(0.0, cpu_s - self.cpu_s))
        self.passes, self.cpu_s = passes, cpu_s

    def is_evicted(self) -> bool:
        """Whether the process has to leave the GPU at once."""
        return self.order is not None and self.order.state is GateState.EVICTED

    def is_closed(self) -> bool:
        """Whether the process may not work now."""
        order = self.order
        if order is None or is_stale(order.page) or order.state is GateState.CLOSED:
            return True
        if order.state is GateState.OPEN:
            return False
        return self.guarantee is None or is_stale(self.guarantee.page) or self.guarantee.in_flight


class Supervisor:
    """The parent of one opportunistic job."""

    def __init__(self, stop_s: float = STOP_S, end_s: float = END_S) -> None:
        self._stop_s, self._end_s = stop_s, end_s
        self._watched: dict[socket.socket, Watched | None] = {}
        self._stopped = False
        self._ended = self._told = False
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run `command` to its end; its exit code, FAILED or ENDED. Raises OSError if it cannot start."""
        with socket_folder() as folder:
            try:
                code = self._run(command, environment, folder / "supervisor")
            finally:
                self._signal(signal.SIGKILL)
        if self._ended:
            return ENDED
        if code == ENDED:
            _say(f"the command exited with {ENDED}, which is kept for jobs that were ended: say {FAILED}")
            return FAILED
        return 128 - code if code < 0 else code

    def _run(self, command: Sequence[str], environment: Mapping[str, str], address: Path) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(address))
            listener.listen(16)
            added = {**environment, SUPERVISOR: str(address)}
            self._process = subprocess.Popen(
                list(command), env=added, process_group=0, preexec_fn=_die_with(os.getpid())
            )
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # else the job is to go on, too
                    signal.signal(number, self._pass_on)
            return self._watch(listener)

    def _watch(self, listener: socket.socket) -> int:
        assert self._process is not None
        last = time.monotonic()
        while (code := self._process.poll()) is None:
            ready, _, _ = select.select([listener, *self._watched], [], [], LOOK_S)
            for each in ready:
                self._answer(listener) if each is listener else self._hear(each)
            now = time.monotonic()
            self._judge(min(now - last, 2 * LOOK_S))  # it may have been stopped itself
            last = now
            if self._kill_at is not None and now > self._kill_at:
                self._signal(signal.SIGKILL)
        return code

    def _judge(self, elapsed_s: float) -> None:
        if self._ended:  # that has been said, and its end was not seen yet
            self._signal(signal.SIGKILL)
            return
        closed_s = 0.0
        open_for_all = True
        for watched in filter(None, self._watched.values()):
            watched.look(elapsed_s, stopped=self._stopped)
            closed_s = max(closed_s, watched.closed_s)
            open_for_all = open_for_all and not (watched.closed_s and watched.is_closed())
        if any(watched.is_evicted() for watched in self._watched.values() if watched):
            self._ended = True
            _say("the coordinator has given the GPU to another job, so this job ends")
            self._signal(signal.SIGKILL)
        elif closed_s > self._stop_s + self._end_s:
            self._ended = True
            _say(f"the job reached no gate for {closed_s:.0f} s while its gate was closed, so it ends")
            self._signal(signal.SIGKILL)
        elif closed_s > self._stop_s and not open_for_all and not self._stopped:
            self._stopped = True
            if not self._told:
                _say("the job works past its closed gate, so it is stopped until the gate opens")
            self._told = True  # once: it may happen again and again
            self._signal(signal.SIGSTOP)
        elif self._stopped and open_for_all:
            self._stopped = False
            self._signal(signal.SIGCONT)

    def _answer(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._watched[connection] = None

    def _hear(self, connection: socket.socket) -> None:
        """What a process's layer passes on. A process that is gone is watched no longer."""
        try:
            packet, descriptors = introduction.receive(connection)
            pages = [Page.of(each) for each in descriptors]
        except (OSError, BadMessage, NoPage):
            packet, pages = b"", []
        watched = self._watched[connection]
        if packet == MINE and pages and watched is None:
            self._watched[connection] = Watched(
                OpportunisticPage(pages[0]), introduction.peer(connection).pid
            )
        elif not packet or watched is None:
            del self._watched[connection]
            connection.close()
        elif packet == ORDER and pages:
            watched.order = GatePage(pages[0])
        elif packet == MET and pages:
            watched.guarantee = GuaranteePage(pages[0])
        elif packet == LOST:
            watched.order = None
        elif packet == ALONE:
            watched.guarantee = None

    def _pass_on(self, number: int, _: object) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.Signals(number))
        self._kill_at = time.monotonic() + KILL_AFTER_S

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def _die_with(parent: int) -> Callable[[], None]:
    """What a child runs before its program: it dies with its parent, which may be gone already."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        os.nice(NICE)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _say(text: str) -> None:
    sys.stderr.write(f"flexo: {text}\n")
    sys.stderr.flush()
