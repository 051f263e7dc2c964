"""Applies a changed configuration while flexod runs (SIGHUP): all reloadable settings of a good file, or
nothing.

Reloadable settings count from the controller's next cycle on, and close no stream. The log, the event store
and the status name the other changes until flexod is started again. They also name every mistake of a faulty
file, of which flexod applies nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from flexo.config import ConfigError, ControllerSettings, Settings, load
from flexo.control.batch_trials import read_all_reduce
from flexo.control.views import Unheeded
from flexo.words import needs_restart
from flexo_protos.all_reduce_file import BadAllReduceFile

AT_ONCE: Final = frozenset(
    {("service", key) for key in ("administrators", "readers", "web_steering")}
    | {("loaning", "inference_users")}
    | {("controller", key) for key in ControllerSettings.model_fields if key != "dry_run"}
)
"""Keys that can change without a restart, by section. `dry_run` cannot, because lending was made with it."""

_log = structlog.get_logger("flexo.service")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The source of the settings."""

    path: Path
    dry_run: bool = False
    """flexod's command line asks for a dry run, whatever the file says."""
    address: str = ""
    """The address at which this one of several flexods listens; "": [service] address."""

    def read(self) -> Settings:
        """The present content. Raises ConfigError, also for a damaged file that it names."""
        settings = load(self.path)
        if (all_reduce := settings.controller.all_reduce) is not None:
            try:
                read_all_reduce(all_reduce)
            except BadAllReduceFile as error:
                raise ConfigError(
                    (f"{self.path}: [controller] all_reduce = {all_reduce}: {error}",)
                ) from error
        if self.dry_run:
            controller = settings.controller.model_copy(update={"dry_run": True})
            settings = settings.model_copy(update={"controller": controller})
        if self.address:
            service = settings.service.model_copy(update={"address": self.address})
            settings = settings.model_copy(update={"service": service})
        return settings


@dataclass(frozen=True, slots=True)
class Change:
    """The change from the settings in use to those of the file."""

    settings: Settings
    """The settings that flexod can use from now on."""
    taken: tuple[str, ...]
    """Keys that are applied now, as ``[section] key``."""
    waiting: tuple[str, ...]
    """Keys that need a restart."""

    @property
    def news(self) -> str:
        """The result, in a sentence."""
        if not self.taken and not self.waiting:
            return "configuration read again: nothing has changed"
        parts = [f"taken over: {', '.join(self.taken)}"] if self.taken else []
        parts += [needs_restart(self.waiting)] if self.waiting else []
        return f"configuration read again: {'; '.join(parts)}"


def compare(running: Settings, wanted: Settings) -> Change:
    """The settings of `wanted` that can take the place of `running` while flexod runs."""
    settings, taken, waiting = running, list[str](), list[str]()
    for section in Settings.model_fields:
        before, after = getattr(running, section), getattr(wanted, section)
        changed = [key for key in type(before).model_fields if getattr(before, key) != getattr(after, key)]
        at_once = [key for key in changed if (section, key) in AT_ONCE]
        taken += [f"[{section}] {key}" for key in at_once]
        waiting += [f"[{section}] {key}" for key in changed if key not in at_once]
        part = before.model_copy(update={key: getattr(after, key) for key in at_once})
        settings = settings.model_copy(update={section: part})
    return Change(settings, tuple(taken), tuple(waiting))


Take = Callable[[Settings, str, Unheeded], None]
"""Applies settings. Arguments: the settings, the news to record, and what of the file does not count."""


class Reloading:
    """Reloads the configuration, one reload after the other. For the event loop's thread."""

    def __init__(self, configuration: Configuration, running: Settings, take: Take) -> None:
        """`take` is called in another thread: it may write to the event store."""
        self._configuration = configuration
        self._running = running
        self._take = take
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Read the file again, soon, because a signal has come."""
        task = asyncio.get_running_loop().create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        async with self._turn:
            await asyncio.to_thread(self._read_and_take)

    def _read_and_take(self) -> None:
        try:
            wanted = self._configuration.read()
        except ConfigError as error:
            self._refuse("; ".join(error.problems))
            return
        except Exception as error:  # any error: a reload that fails must say so
            _log.exception("the configuration could not be read again")
            self._refuse(f"{type(error).__name__}: {error}")
            return
        for notice in wanted.renamed:
            _log.warning(notice)
        change = compare(self._running, wanted)
        _log.info(change.news)
        self._running = change.settings
        self._take(change.settings, change.news, Unheeded(needs_restart=change.waiting))

    def _refuse(self, why: str) -> None:
        news = f"the configuration is not taken over, nothing of it: {why}"
        _log.error(news)
        self._take(self._running, news, Unheeded(refused=news))
