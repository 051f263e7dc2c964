"""What one process of flexod has from its start to its end, whether it acts at present or stands by."""

from __future__ import annotations

import asyncio
import signal
import threading

from prometheus_client import CollectorRegistry, ProcessCollector

from flexo.config import Settings
from flexo.metrics.happenings import Happenings
from flexo.metrics.itself import Itself
from flexo.service.active import Active
from flexo.service.authentication import principal_of
from flexo.service.budgets import STANDARD
from flexo.service.reloading import Configuration, Reloading


class CannotServe(Exception):
    """flexod does not start or cannot go on; the message says why in a sentence."""


class Process:
    """Made in the event loop that it is for. Signals have effect from then on."""

    def __init__(self, configuration: Configuration, settings: Settings) -> None:
        self.settings = settings
        """As far as they have been taken over (reloading.py)."""
        self.ended = asyncio.Event()
        """SIGTERM or SIGINT has come, or the controller has failed."""
        self._active: Active | None = None
        """None: it stands by."""
        self._untold = ""
        """What became of the configuration while it stood by."""
        self._unheeded = ""
        """What of it is not gone by."""
        self._lock = threading.Lock()
        """Settings are taken over in a thread of their own: none may slip in between."""
        self.registry = CollectorRegistry()
        self.happenings = Happenings(self.registry)
        ProcessCollector(registry=self.registry)
        self.registry.register(Itself(lambda: self._active is not None))
        self._reloading = Reloading(configuration, settings, self._take)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ended.set)
        loop.add_signal_handler(signal.SIGHUP, self._reloading.begin)

    def begin_to_act(self, active: Active, made_with: Settings) -> None:
        """`active` goes by all changes from now on, and is told of those since its settings were taken.

        Like `stand_by`, it may wait for the journal: not for the event loop's thread while streams are open.
        """
        with self._lock:
            self._active = active
            if self.settings != made_with or self._untold or self._unheeded:
                active.take(self.settings, self._untold or f"as before: {self._unheeded}", self._unheeded)
            self._untold = ""

    def stand_by(self) -> None:
        """Nobody acts any more."""
        with self._lock:
            self._active = None

    def connections_of_jobs(self, uid: int) -> int:
        """How many connections the leaders and agents of a user's running elastic jobs may need: one for each
        job, and one for each node. For any thread.
        """
        active = self._active
        state = active.controller.observation if active else None
        if state is None:  # nobody knows the jobs yet
            return STANDARD.leases
        owner = principal_of(uid)
        return sum(
            len(job.nodes) + (job.elastic is not None)
            for job in state.jobs
            if job.owner == owner and (job.elastic is not None or job.satellite is not None) and job.nodes
        )

    def _take(self, changed: Settings, news: str, unheeded: str) -> None:
        with self._lock:
            self.settings, self._unheeded = changed, unheeded
            if self._active is None:
                self._untold = news
            else:
                self._active.take(changed, news, unheeded)
