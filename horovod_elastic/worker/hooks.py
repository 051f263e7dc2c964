"""The hooks in Horovod's Python layer: where a script's calls meet the job's leader.

Three places, none inside Horovod's files: HorovodBasics.init (who is in the communicator), rank() and size()
and their relatives (what a newcomer that warms up alone believes), and common.elastic.run_fn (the loop around
the training function). Horovod's own version of the last one skips the synchronisation on some ranks and not
on others after certain sequences of changes (horovod#3494) and listens on a socket; ours always synchronises,
and saves first, so that a planned change loses nothing that was trained.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from horovod_elastic.worker import connections, sigterm
from horovod_elastic.worker import session as sessions

_PLACE_CALLS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")

_move: Callable[[], None] | None = None
"""What the next initialisation of Horovod has to ask the leader; set by the loop around a reset."""


def patch_basics(module: ModuleType) -> None:
    """Hook horovod.common.basics.HorovodBasics."""
    basics = module.HorovodBasics
    basics.init = _init_with_a_place(basics.init)
    for name in _PLACE_CALLS:
        setattr(basics, name, _told_the_outlook(name, getattr(basics, name)))


def _init_with_a_place(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _move
        session = sessions.current()
        if session.belongs_here() and not self.is_initialized():
            sigterm.outlive()
            session.connect()
            if _move is not None:
                move, _move = _move, None
                move()
            elif session.generation == 0 and not session.warming:
                session.found()
            with connections.recorded():
                return original(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return init


def _told_the_outlook(name: str, original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def place(self: Any) -> int:
        outlook = sessions.current().outlook
        # Horovod's own code must know the truth: it is alone, and broadcasts accordingly.
        if outlook is None or sys._getframe(1).f_globals.get("__name__", "").startswith("horovod."):
            return original(self)
        return int(getattr(outlook, name))

    return place


def patch_elastic(module: ModuleType) -> None:
    """Hook horovod.common.elastic: the loop, commits, and no notification server."""
    module.run_fn = _run_fn(module)  # type: ignore[attr-defined]
    module.notification_manager.init = lambda *args, **kwargs: None
    module.State.commit = _commit(module)


def _commit(module: ModuleType) -> Callable[[Any], None]:
    def commit(self: Any) -> None:
        """As Horovod's: save, then see whether the set of workers is to change."""
        self.save()
        sessions.current().committed()
        self._flexo_saved = True  # stays so only if the next line raises
        self.check_host_updates()
        self._flexo_saved = False

    return commit


def _run_fn(module: ModuleType) -> Callable[..., Any]:
    def deliver_to_listeners(generation: int) -> None:
        everything = module.HostUpdateResult.mixed
        for listener in list(module.notification_manager._listeners):
            listener.on_hosts_updated(generation, everything)

    def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
        @functools.wraps(func)
        def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
            session = sessions.current()
            module.notification_manager.register_listener(state)
            try:
                if session.warming:
                    _change_generation(reset, session.join)
                    state.on_reset()
                else:
                    session.enter_loop()
                while True:
                    try:
                        state.sync()
                        # Horovod's sync leaves what restore() goes back to as it was: in a newcomer a model
                        # never trained, in one that was a batch behind the model without that batch.
                        state.save()
                        session.synchronised()
                        session.resume(deliver_to_listeners)
                        result = func(state, *args, **kwargs)
                        session.finished()
                        return result
                    except module.HorovodInternalError:
                        connections.hang_up()
                        state.restore()
                    except module.HostsUpdatedInterrupt:
                        if not getattr(state, "_flexo_saved", False):
                            state.save()
                    state._flexo_saved = False
                    _change_generation(reset, session.arrive)
                    state.on_reset()
            finally:
                module.notification_manager.remove_listener(state)

        return wrapper

    return run_fn


def _change_generation(reset: Callable[[], None], move: Callable[[], None]) -> None:
    """Horovod's own reset (shut down, initialise again), with `move` between the two."""
    global _move
    _move = move
    reset()
