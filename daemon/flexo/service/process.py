"""The parts of one process of flexod from its start to its end, whether it acts at present or stands by."""

from __future__ import annotations

import asyncio
import signal
import threading

from prometheus_client import CollectorRegistry, ProcessCollector

from flexo.config import Settings
from flexo.control.views import Unheeded
from flexo.metrics.counters import Counters
from flexo.metrics.itself import Itself
from flexo.service.active import Active
from flexo.service.authentication import principal_of
from flexo.service.budgets import STANDARD
from flexo.service.reloading import Configuration, Reloading


class CannotServe(Exception):
    """flexod does not start or cannot go on; the message says why in a sentence."""


class Process:
    """One process of flexod. It is made in its event loop, and handles signals from then on."""

    def __init__(self, configuration: Configuration, settings: Settings) -> None:
        self.settings = settings
        """The settings, as far as flexod has applied them (reloading.py)."""
        self.ended = asyncio.Event()
        """Set when SIGTERM or SIGINT has come, or the controller has failed."""
        self._active: Active | None = None
        """The active part; None: this flexod stands by."""
        self._untold = ""
        """The news of the configuration that came while this flexod stood by."""
        self._unheeded = Unheeded()
        self._lock = threading.Lock()
        """Held while settings are applied, in a thread of their own, and while `_active` changes: no change
        is missed in between."""
        self.registry = CollectorRegistry()
        self.counters = Counters(self.registry)
        ProcessCollector(registry=self.registry)
        self.registry.register(Itself(lambda: self._active is not None))
        self._reloading = Reloading(configuration, settings, self._take)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ended.set)
        loop.add_signal_handler(signal.SIGHUP, self._reloading.begin)

    def begin_to_act(self, active: Active, made_with: Settings) -> None:
        """Make `active` the active part. It gets all changes of settings from now on, and those since
        `made_with`.

        Like `stand_by`, it may wait for the event store: not for the event loop's thread while streams are
        open.
        """
        with self._lock:
            self._active = active
            if self.settings != made_with or self._untold or self._unheeded:
                active.take(self.settings, self._untold or f"as before: {self._unheeded}", self._unheeded)
            self._untold = ""

    def stand_by(self) -> None:
        """Note that this flexod does not act any more."""
        with self._lock:
            self._active = None

    def connections_of_jobs(self, uid: int) -> int:
        """The number of connections that the leaders and agents of a user's running elastic jobs may need:
        one for each job, and one for each node. For any thread."""
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

    def _take(self, changed: Settings, news: str, unheeded: Unheeded) -> None:
        with self._lock:
            self.settings, self._unheeded = changed, unheeded
            if self._active is None:
                self._untold = news
            else:
                self._active.take(changed, news, unheeded)
