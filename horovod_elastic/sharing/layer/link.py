"""A job's connection to its coordinator and to its supervisor: a thread that introduces the job, and
again.

The thread costs an unshared job nothing: it sleeps until somebody says something. A coordinator that is
gone is called again and again, ever more rarely. Meanwhile a guarantee job trains on, and an
opportunistic job stands at its gate.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from horovod_elastic.sharing import introduction, watchdog
from horovod_elastic.sharing.environment import Role, Sharing
from horovod_elastic.sharing.introduction import BadMessage, Hello, Kind, NoCoordinator
from horovod_elastic.sharing.pages import GatePage, GuaranteePage, NoPage, Page
from horovod_elastic.sharing.supervisor import ALONE, LOST, MET, MINE, ORDER

FIRST_RETRY_S, LAST_RETRY_S = 0.2, 2.0
UNSHARED_BEAT_S = 5.0
"""A job that shares with nobody wakes up this often."""


class Link:
    """The connection of one process. `page`: its own. Runs from `start` on.

    `ordered(gate)` and `met(guarantee)` are called in the thread: with the page of orders, and with the
    page of the guarantee job or None once it has left.
    """

    def __init__(
        self,
        sharing: Sharing,
        page: Page,
        ordered: Callable[[GatePage | None], None],
        met: Callable[[GuaranteePage | None], None],
        measure: Callable[[], None] = lambda: None,
    ) -> None:
        self._sharing, self._page = sharing, page
        self._ordered, self._met, self._measure = ordered, met, measure
        self._order: GatePage | None = None
        self._connection: socket.socket | None = None
        self._supervisor: socket.socket | None = None
        self._said = ""
        self._started = threading.Event()

    def start(self) -> None:
        """Introduce this process, and keep it introduced."""
        if not self._started.is_set():
            self._started.set()
            threading.Thread(target=self._run, name="flexo-sharing", daemon=True).start()

    def close(self) -> None:
        """Close a forked child's copies of the connections: with them, nobody would see this process end."""
        for each in (self._connection, self._supervisor):
            if each is not None:
                each.close()

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        self._call_supervisor()
        while True:
            try:
                with introduction.connect(self._sharing.folder) as connection:
                    self._connection, retry_s = connection, FIRST_RETRY_S
                    self._introduce(connection)
                    self._converse(connection)
            except (OSError, BadMessage, NoPage) as error:
                if isinstance(error, NoCoordinator):
                    self._say(str(error))
            self._ordered(None)
            self._pass_on(LOST)
            self._watch_supervisor(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    def _introduce(self, connection: socket.socket) -> None:
        sharing = self._sharing
        hello = Hello(sharing.gpu, sharing.role, sharing.job[: introduction.LONGEST_JOB], sharing.consent)
        introduction.send(connection, hello.encoded(), self._page.descriptor)

    def _converse(self, connection: socket.socket) -> None:
        """Hear the coordinator until it is gone, and say in the page that this process lives."""
        while True:
            shared = self._order is None or self._order.shared
            wait_s = watchdog.BEAT_S if shared else UNSHARED_BEAT_S
            listened = [connection, *([self._supervisor] if self._supervisor else [])]
            ready, _, _ = select.select(listened, [], [], wait_s)
            self._measure()
            self._page.beat()
            if self._supervisor in ready:
                self._hear_supervisor()
            if connection in ready and not self._hear(connection):
                return

    def _hear(self, connection: socket.socket) -> bool:
        packet, descriptors = introduction.receive(connection)
        if not packet:
            return False
        told = introduction.told_of(packet)
        if told.kind is Kind.REFUSED:
            for each in descriptors:
                os.close(each)
            self._say(told.reason)
            time.sleep(LAST_RETRY_S)
            return False
        if told.kind is Kind.QUEUED:
            self._say(told.reason)
        for descriptor in descriptors:
            page = Page.of(descriptor)
            if told.kind is Kind.ACCEPTED:
                self._order = GatePage(page)
                self._ordered(self._order)
                self._pass_on(ORDER, page)
            elif told.kind is Kind.PEER:
                self._met(GuaranteePage(page))
                self._pass_on(MET, page)
        if told.kind is Kind.ALONE:
            self._met(None)
            self._pass_on(ALONE)
        return True

    def _call_supervisor(self) -> None:
        path = self._sharing.supervisor
        if path is None or self._sharing.role is not Role.OPPORTUNISTIC:
            return
        supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            supervisor.connect(str(path))
            introduction.send(supervisor, MINE, self._page.descriptor)
        except OSError:
            watchdog.end_without_supervisor()
        self._supervisor = supervisor

    def _pass_on(self, word: bytes, *pages: Page) -> None:
        """Pass on to the supervisor what the gate depends on. That it is gone is noticed elsewhere."""
        if self._supervisor is not None:
            with suppress(OSError):
                introduction.send(self._supervisor, word, *(page.descriptor for page in pages))

    def _watch_supervisor(self, wait_s: float) -> None:
        if self._supervisor is None:
            time.sleep(wait_s)
            return
        ready, _, _ = select.select([self._supervisor], [], [], wait_s)
        if ready:
            self._hear_supervisor()

    def _hear_supervisor(self) -> None:
        supervisor = self._supervisor
        assert supervisor is not None
        with suppress(OSError):
            if supervisor.recv(64):
                return
        watchdog.end_without_supervisor()

    def _say(self, text: str) -> None:
        """Say it once, not at each attempt."""
        if text and text != self._said:
            self._said = text
            sys.stderr.write(f"flexo: sharing GPU {self._sharing.gpu}: {text}\n")
            sys.stderr.flush()
