"""The coordinator of a node's shared GPUs: an unprivileged service that needs no cluster.

It introduces jobs to each other, applies the law every TICK_S, and writes the status every second. If it
dies, its pages go stale within a second: gates close, guarantee jobs train on. A new coordinator is
introduced to the same jobs, because they call again.
"""

from __future__ import annotations

import os
import platform
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from horovod_elastic.sharing import introduction, law, status
from horovod_elastic.sharing.devices import Device
from horovod_elastic.sharing.introduction import BadMessage, Caller, Kind, Told
from horovod_elastic.sharing.pages import NoPage, Page
from horovod_elastic.sharing.shared_gpu import Member, SharedGpu

TICK_S = 0.05
STATUS_S = 1.0
SETTLE_S = 3.0
"""After its start, a coordinator waits this long for jobs that a former one knew. They call every 2 s.
"""
INTRODUCTION_S = 2.0
"""A caller that has said nothing for this long is hung up on."""
MOST_CALLERS = 64
"""Processes of one user, with those that live on without their connection."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A caller that has not introduced itself yet. `since`: when it called."""

    caller: Caller
    since: float


class Coordinator:
    """The service of one folder. `devices`: the GPUs that may be shared."""

    def __init__(self, folder: Path, devices: Sequence[Device], rules: law.Rules | None = None) -> None:
        self._folder = folder
        self._gpus = {
            device.name: SharedGpu(device, self._hang_up, rules or law.Rules()) for device in devices
        }
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[socket.socket, Stranger] = {}
        self._members: dict[socket.socket, tuple[Member, SharedGpu]] = {}
        self._identities = 0
        self._ending = False
        self._started = time.monotonic()
        self._listener = introduction.listen(folder)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until `end`."""
        next_tick = next_status = time.monotonic()
        while not self._ending:
            self._hear(max(0.0, next_tick - time.monotonic()))
            now = time.monotonic()
            if now >= next_tick:
                self.tick(now)
                next_tick = now + TICK_S
            if now >= next_status:
                self._write_status()
                next_status = now + STATUS_S
        self._close()

    def end(self) -> None:
        """Have `run` return. May be called in a signal handler."""
        self._ending = True

    def tick(self, now: float) -> None:
        """One decision for each GPU."""
        for gpu in self._gpus.values():
            gpu.tick(now, complete=now - self._started >= SETTLE_S)
        late = [each for each, stranger in self._strangers.items() if now - stranger.since > INTRODUCTION_S]
        for connection in late:
            self._hang_up(connection)

    def _hear(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._listener:
                self._answer()
            elif connection in self._strangers:
                self._introduce(connection)
            elif connection in self._members:  # else it was closed for what another one has just said
                self._hear_member(connection)

    def _answer(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has hung up already
            return
        connection.setblocking(False)
        caller = introduction.peer(connection)
        self._strangers[connection] = Stranger(caller, time.monotonic())
        self._selector.register(connection, selectors.EVENT_READ)
        if self._calls_of(caller.uid) > MOST_CALLERS:
            self._refuse(connection, f"this user has {MOST_CALLERS} processes here already")

    def _calls_of(self, uid: int) -> int:
        strangers = (stranger.caller for stranger in self._strangers.values())
        members = (member.caller for gpu in self._gpus.values() for member in gpu.members())
        return sum(caller.uid == uid for caller in (*strangers, *members))

    def _introduce(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        try:
            packet, descriptors = introduction.receive(connection)
            if not packet:
                self._hang_up(connection)
                return
            if (eviction := introduction.eviction_of(packet)) is not None:
                self._evict(connection, eviction.gpu)
                return
            hello = introduction.hello_of(packet)
            self._check(hello.gpu)
            if len(descriptors) != 1:
                raise BadMessage("an introduction comes with one page")
            page = Page.of(descriptors.pop())
        except BlockingIOError:
            return
        except (OSError, BadMessage, NoPage) as error:
            for each in descriptors:
                os.close(each)
            self._refuse(connection, str(error))
            return
        caller = self._strangers.pop(connection).caller
        self._identities += 1
        member = Member(self._identities, connection, caller, hello, page)
        gpu = self._gpus[hello.gpu]
        self._members[connection] = (member, gpu)
        gpu.join(member)

    def _evict(self, connection: socket.socket, gpu: str) -> None:
        """End the opportunistic jobs on a GPU, for root or this service's own user. Raises BadMessage."""
        self._check(gpu)
        if self._strangers[connection].caller.uid not in (0, os.getuid()):
            raise BadMessage("only root and the coordinator's user may end the job of another one")
        self._selector.unregister(connection)
        del self._strangers[connection]
        self._gpus[gpu].evict(connection)

    def _check(self, gpu: str) -> None:
        if gpu not in self._gpus:
            known = ", ".join(sorted(self._gpus)) or "none"
            raise BadMessage(f"there is no GPU {gpu} here; this coordinator has {known}")

    def _hear_member(self, connection: socket.socket) -> None:
        """Members say nothing after their introduction: their pages do. Words end the conversation."""
        with suppress(BlockingIOError):
            with suppress(ConnectionError, BadMessage):
                _, descriptors = introduction.receive(connection)
                for each in descriptors:
                    os.close(each)
            member, gpu = self._members[connection]
            self._hang_up(connection)
            gpu.lost(member)

    def _hang_up(self, connection: socket.socket) -> None:
        """Close a connection, unless that has been done."""
        if self._strangers.pop(connection, None) is None and self._members.pop(connection, None) is None:
            return
        self._selector.unregister(connection)
        connection.close()

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        with suppress(OSError):
            introduction.send(connection, Told(Kind.REFUSED, reason).encoded())
        self._hang_up(connection)

    def _write_status(self) -> None:
        gpus = tuple(gpu.status() for gpu in self._gpus.values())
        try:
            status.write(status.NodeStatus(platform.node(), os.getpid(), time.time(), gpus), self._folder)
        except OSError as error:  # a full disk stops no gate
            sys.stderr.write(f"flexo: {self._folder / status.FILE}: {error.strerror}\n")

    def _close(self) -> None:
        for gpu in self._gpus.values():
            gpu.close()
        self._listener.close()
        with suppress(OSError):
            (self._folder / introduction.SOCKET).unlink()


def serve(folder: Path, devices: Sequence[Device]) -> None:
    """Serve until SIGTERM or SIGINT."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each process here takes four descriptors
    coordinator = Coordinator(folder, devices)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: coordinator.end())
    coordinator.run()
