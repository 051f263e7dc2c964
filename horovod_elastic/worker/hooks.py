"""The hooks in Horovod's Python layer: where a script's calls meet the job's leader.

Four places, none inside Horovod's files: HorovodBasics.init (who is in the communicator), rank() and size()
and their relatives (what a newcomer that warms up alone believes), the names of broadcast objects, and
common.elastic: commits, and run_fn, the loop around the training function. Horovod's own loop broadcasts at
every commit whether hosts have changed, skips the synchronisation on some ranks and not on others after
certain sequences of changes (horovod#3494), and listens on a socket. Ours asks the session, which knows at
which mini-batch boundary everybody switches.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from horovod_elastic.core.native.horovod_core import HorovodCore
from horovod_elastic.worker import boundary, sigterm
from horovod_elastic.worker import session as sessions
from horovod_elastic.worker.part import Called

_PLACE_CALLS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


def patch_basics(module: ModuleType) -> None:
    """Hook horovod.common.basics.HorovodBasics."""
    basics = module.HorovodBasics
    basics.init = _init_with_a_place(basics.init)
    for name in _PLACE_CALLS:
        setattr(basics, name, _told_the_outlook(name, getattr(basics, name)))


def _init_with_a_place(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = sessions.current()
        if not session.belongs_here() or self.is_initialized() or session.generation > 0:
            return original(self, *args, **kwargs)
        sigterm.outlive()
        if session.core is None:
            session.core = HorovodCore(_mpi_ops())
            process_sets = _process_sets(*args, **kwargs)
            if not session.warming:  # those who train have none any more: all must build with the same
                session.core.process_sets = process_sets
        session.connect()
        if session.warming:
            session.core.alone()
        else:
            session.found()
        return None

    return init


def _process_sets(comm: Any = None, process_sets: Any = None) -> list[Any]:
    """What hvd.init was called with."""
    if comm:
        sys.exit("flexo: hvd.init(comm=...) is not possible under flexo run: the leader says who trains")
    if process_sets == "dynamic":
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        return []
    return list(process_sets or [])


def _mpi_ops() -> ModuleType:
    """Horovod's PyTorch layer; hvd.init of any other calls HorovodBasics.init as well."""
    try:
        return sys.modules["horovod.torch.mpi_ops"]
    except KeyError:
        sys.exit("flexo: only PyTorch scripts (import horovod.torch) can be trained under flexo run")


def _told_the_outlook(name: str, original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def place(self: Any) -> int:
        outlook = sessions.current().outlook
        # Horovod's own code must know the truth: it is alone, and broadcasts accordingly.
        if outlook is None or sys._getframe(1).f_globals.get("__name__", "").startswith("horovod."):
            return original(self)
        return int(getattr(outlook, name))

    return place


def patch_functions(module: ModuleType) -> None:
    """Hook horovod.torch.functions: objects without a name are called after their type there.

    So `broadcast_object(settings if rank == 0 else None)` would wait for ever, and at once where a newcomer
    has not got yet what the others have.
    """
    for name in ("broadcast_object", "allgather_object"):
        setattr(module, name, _with_one_name(getattr(module, name)))


def _with_one_name(original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def named(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        call.arguments["name"] = call.arguments.get("name") or "object"
        return original(*call.args, **call.kwargs)

    return named


def patch_elastic(module: ModuleType) -> None:
    """Hook horovod.common.elastic: the loop, commits, and no notification server."""
    module.run_fn = _run_fn(module)  # type: ignore[attr-defined]
    module.notification_manager.init = lambda *args, **kwargs: None
    module.State.commit = _commit
    module.State.check_host_updates = _check_host_updates(module)


def _commit(self: Any) -> None:
    """As Horovod's: save, then see whether the set of workers is to change."""
    self.save()
    sessions.current().committed()
    self._flexo_saved = True  # stays so only if the next line raises
    self.check_host_updates()
    self._flexo_saved = False


def _check_host_updates(module: ModuleType) -> Callable[[Any], None]:
    def check_host_updates(self: Any) -> None:
        """A mini-batch boundary."""
        session = sessions.current()
        boundary.run_tasks(session, self)
        word = session.at_boundary()
        if word is not None:
            self._flexo_word = word
            raise module.HostsUpdatedInterrupt(not word.sync)

    return check_host_updates


def _run_fn(module: ModuleType) -> Callable[..., Any]:
    def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
        @functools.wraps(func)
        def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
            session = sessions.current()
            sync = True
            boundary.attach(session, state)
            if session.warming:
                boundary.warm_up(state)
                session.join()
                state.on_reset()
            else:
                session.enter_loop()
            while True:
                try:
                    boundary.begin(session, state, sync=sync)
                    result = func(state, *args, **kwargs)
                    session.finished()
                    return result
                except module.HorovodInternalError:
                    session.hang_up()
                    boundary.restore(state)
                    sync = session.recover().sync
                except module.HostsUpdatedInterrupt:
                    if not getattr(state, "_flexo_saved", False):
                        state.save()
                    sync = _switch(session, state._flexo_word).sync
                state._flexo_saved = False
                state.on_reset()

        return wrapper

    return run_fn


def _switch(session: sessions.Session, word: Called) -> Called:
    """At the boundary that everybody agreed on: into the next generation, or out of this one."""
    if word.leave:
        session.leave()
    return session.step_aside() if word.aside else session.enter(word)
