"""The coordinator of a node's shared GPUs: an unprivileged service that needs no cluster.

It introduces jobs to each other, applies the law every TICK_S, and writes the status every second. If it
dies, its pages go stale within a second: gates close, guarantee jobs train on. A new coordinator is
introduced to the same jobs, because they call again.
"""

from __future__ import annotations

import os
import platform
import selectors
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from horovod_elastic.sharing import introduction, law, status
from horovod_elastic.sharing.devices import Device
from horovod_elastic.sharing.introduction import BadMessage, Kind, Told
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
"""Connections of one user."""


class Coordinator:
    """The service of one folder. `devices`: the GPUs that may be shared."""

    def __init__(self, folder: Path, devices: Sequence[Device], rules: law.Rules | None = None) -> None:
        self._folder = folder
        self._gpus = {device.name: SharedGpu(device, rules or law.Rules()) for device in devices}
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[socket.socket, float] = {}
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
        for stranger in [each for each, since in self._strangers.items() if now - since > INTRODUCTION_S]:
            self._hang_up(stranger)

    def _hear(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._listener:
                self._answer()
            elif connection in self._strangers:
                self._introduce(connection)
            else:
                self._hear_member(connection)

    def _answer(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            callers = Counter(introduction.peer(each).uid for each in (*self._strangers, *self._members))
            if callers[introduction.peer(connection).uid] >= MOST_CALLERS:
                self._refuse(connection, f"this user has {MOST_CALLERS} connections already")
                return
            self._strangers[connection] = time.monotonic()
            self._selector.register(connection, selectors.EVENT_READ)

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
            self._selector.unregister(connection)
            del self._strangers[connection]
            self._refuse(connection, str(error))
            return
        del self._strangers[connection]
        self._identities += 1
        member = Member(self._identities, connection, introduction.peer(connection), hello, page)
        gpu = self._gpus[hello.gpu]
        self._members[connection] = (member, gpu)
        gpu.join(member)

    def _evict(self, connection: socket.socket, gpu: str) -> None:
        """End the opportunistic job on a GPU, for root or this service's own user. Raises BadMessage."""
        self._check(gpu)
        if introduction.peer(connection).uid not in (0, os.getuid()):
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
            member, gpu = self._members.pop(connection)
            self._selector.unregister(connection)
            gpu.lost(member)
            connection.close()

    def _hang_up(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._strangers[connection]
        connection.close()

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        with suppress(OSError):
            introduction.send(connection, Told(Kind.REFUSED, reason).encoded())
        connection.close()

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
    coordinator = Coordinator(folder, devices)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: coordinator.end())
    coordinator.run()
