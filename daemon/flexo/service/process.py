"""What one process of flexod has from its start to its end, whether it acts at present or stands by."""

from __future__ import annotations

import asyncio
import signal

from prometheus_client import CollectorRegistry, ProcessCollector

from flexo.config import Settings
from flexo.metrics.happenings import Happenings
from flexo.metrics.itself import Itself
from flexo.service.active import Active
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
        self.active: Active | None = None
        """None: it stands by."""
        self.registry = CollectorRegistry()
        self.happenings = Happenings(self.registry)
        ProcessCollector(registry=self.registry)
        self.registry.register(Itself(lambda: self.active is not None))
        self._reloading = Reloading(configuration, settings, self._take)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ended.set)
        loop.add_signal_handler(signal.SIGHUP, self._reloading.begin)

    def _take(self, changed: Settings, news: str, unheeded: str) -> None:
        self.settings = changed
        if self.active is not None:
            self.active.take(changed, news, unheeded)
