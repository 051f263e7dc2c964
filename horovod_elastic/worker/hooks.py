"""The hooks in Horovod's Python layer, by which a script's calls reach the job's leader.

No hook is inside Horovod's files. HorovodBasics.init is hooked because of the communicator's members. rank(),
size() and their relatives tell a newcomer that warms up alone its projected place. The other hooks concern
the names of broadcast objects, process sets, the sampler, and common.elastic: commits, and run_fn, the loop
around the training function. Horovod's own loop broadcasts at every commit whether hosts have changed, and
listens on a socket. After certain sequences of changes, it skips the synchronisation on some ranks and not on
others (horovod#3494). Our loop asks the session, which knows at which mini-batch boundary all workers switch.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from horovod_elastic import progress, reproducible, stateful
from horovod_elastic.core import choice, python_layer
from horovod_elastic.core.interface import Core, Disagreement
from horovod_elastic.worker import boundary, left_out, plain_samplers, replicas, sampler_order, sigterm
from horovod_elastic.worker import session as sessions
from horovod_elastic.worker.participant_state import Called
from horovod_elastic.worker.state_route import Origin

DISAGREEMENTS_IN_A_ROW = 3
"""The number of disagreements between ranks, without a commit since the first, that the script hears of."""
_ARE_TOLD_THE_TRUTH = ("horovod.", sampler_order.__name__)
"""Modules that get a lone newcomer's real rank and size: Horovod's own, and their replacements."""
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
        if reproducible.virtual_workers(os.environ):
            sys.exit(
                "flexo: --reproducible is for scripts of torch.distributed, and this is a Horovod script: run"
                " it without the option"
            )
        sigterm.outlive()
        if session.core is None:
            session.core = _new_core(_mpi_ops())
            process_sets = _process_sets(*args, **kwargs)
            if not session.warming:  # workers that train have none any more, and all must have the same
                session.core.process_sets = process_sets
        session.connect()
        if session.warming:
            session.core.alone()
        else:
            session.found()
        return None

    return init


def _process_sets(comm: Any = None, process_sets: Any = None) -> list[Any]:
    """The process sets in the arguments of hvd.init."""
    if comm:
        sys.exit("flexo: hvd.init(comm=...) is not possible under flexo run: the leader says who trains")
    if process_sets == "dynamic":
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        return []
    given = list(process_sets or [])
    for number, each in enumerate(given):
        if each.ranks in [earlier.ranks for earlier in given[:number]]:
            raise ValueError(f"hvd.init: process_sets entry number {number} is a duplicate: {each}")
    return given


def _new_core(mpi_ops: ModuleType) -> Core:
    """A core of the kind that was chosen. The other kind is not even imported."""
    if choice.is_on_torch():
        from horovod_elastic.core.c10d import standin
        from horovod_elastic.core.c10d.torch_core import TorchCore

        return TorchCore(standin.the_layer())
    from horovod_elastic.core.native.horovod_core import HorovodCore

    return HorovodCore(mpi_ops)


def _mpi_ops() -> ModuleType:
    """Horovod's PyTorch layer. Ends the process if a script calls hvd.init of another layer of Horovod."""
    try:
        return sys.modules["horovod.torch.mpi_ops"]
    except KeyError:
        sys.exit("flexo: only PyTorch scripts (import horovod.torch) can be trained under flexo run")


patch_process_sets = python_layer.patch_process_sets


def _told_the_outlook(name: str, original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def place(self: Any) -> int:
        projected_rank = sessions.current().projected_rank
        asks = sys._getframe(1).f_globals.get("__name__", "")
        if projected_rank is None or asks.startswith(_ARE_TOLD_THE_TRUTH):
            return original(self)
        return int(getattr(projected_rank, name))

    return place


def patch_functions(module: ModuleType) -> None:
    """Hook horovod.torch.functions, which names objects without a name after their type.

    So `broadcast_object(settings if rank == 0 else None)` would wait for ever. That would happen at once if a
    newcomer does not have the object yet that the others have.
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
    """Hook horovod.common.elastic: replace the loop and commits, and start no notification server."""
    module.run_fn = _run_fn(module)  # type: ignore[attr-defined]
    module.notification_manager.init = lambda *args, **kwargs: None
    module.State.commit = _commit
    module.ObjectState.save = _save_attributes
    module.ObjectState.restore = _restore_attributes
    module.ObjectState._set_attrs = _set_attributes
    module.State.check_host_updates = _check_host_updates(module)


def patch_sampler(module: ModuleType) -> None:
    """Hook horovod.torch.elastic.sampler, so that the order of an epoch is made only once."""
    module.ElasticSampler.reset = sampler_order.reset(module)


def patch_state(module: ModuleType) -> None:
    """Hook horovod.torch.elastic.state, so that a save writes over the copies of the save before."""
    from horovod_elastic.worker import saved_copies, spare_memory  # PyTorch is imported now

    stateful.patch(module)

    save_over = saved_copies.save_over
    module.ModelStateHandler.save = save_over("_saved_model_state")
    module.OptimizerStateHandler.save = save_over("_saved_optimizer_state", spare_memory.to_save)


def _commit(self: Any) -> None:
    """Replaces State.commit: save, then see whether the set of workers is to change, as Horovod does."""
    if boundary.is_deferred(self):
        return
    self.save()
    sessions.current().committed(progress.of(self))
    self._flexo_saved = True  # stays so only if the next line raises
    self.check_host_updates()
    self._flexo_saved = False


def _save_attributes(self: Any) -> None:
    from horovod_elastic.worker import attached  # imports PyTorch

    self._saved_state = {name: attached.save(self, name, getattr(self, name)) for name in self._saved_state}


def _restore_attributes(self: Any) -> None:
    from horovod_elastic.worker import attached  # imports PyTorch

    for name, saved in self._saved_state.items():
        setattr(self, name, attached.bring_back(self, name, saved))


def _set_attributes(self: Any) -> None:
    from horovod_elastic.worker import attached  # imports PyTorch

    attached.set_attributes(self)


def _check_host_updates(module: ModuleType) -> Callable[[Any], None]:
    def check_host_updates(self: Any) -> None:
        """Pass a mini-batch boundary."""
        if boundary.is_deferred(self):
            return
        session = sessions.current()
        boundary.run_tasks(session, self)
        word = session.at_boundary()
        replicas.at_boundary(session, self, last=word is not None)
        if word is not None:
            self._flexo_word = word
            raise module.HostsUpdatedInterrupt(not word.sync)
        session.try_batches()
        if getattr(self, "_flexo_saved", False):
            boundary.park_copy(session, self)

    return check_host_updates


def _run_fn(module: ModuleType) -> Callable[..., Any]:
    def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
        @functools.wraps(func)
        def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
            session = sessions.current()
            sync, origin = True, Origin.NEW
            patience = _DisagreementLimit()
            boundary.attach(session, state)
            resumes = _enter(session, state)
            while True:
                try:
                    boundary.begin(session, state, origin=origin, sync=sync, resumes=resumes)
                    with left_out.in_training_function():
                        result = func(state, *args, **kwargs)
                    session.finished()
                    return result
                except module.HorovodInternalError as error:
                    session.hang_up()
                    if patience.ends(error, session.commits):
                        raise
                    boundary.restore(state)
                    sync, origin = session.recover().sync, Origin.BACK
                except module.HostsUpdatedInterrupt:
                    if not getattr(state, "_flexo_saved", False):
                        state.save()
                        session.has_saved()
                    if state._flexo_word.parks:
                        boundary.park(session, state)
                    sync, origin = _switch(session, state._flexo_word)
                resumes = False
                state._flexo_saved = False
                _reset(state)

        return wrapper

    return run_fn


def _enter(session: sessions.Session, state: Any) -> bool:
    """Enter the loop, after a newcomer was called. Returns whether it goes on from a parked state."""
    if session.warming:
        boundary.warm_up(state)
        word = session.join()
        _reset(state)
        return word.resumes
    if why := boundary.cannot_park(state):
        session.keeps_size(why)
    else:
        session.enter_loop()
    return False


def _reset(state: Any) -> None:
    """Adapt to the script's new place: samplers first, so that the script's callbacks find them adapted."""
    plain_samplers.divide_anew()
    state.on_reset()


def _switch(session: sessions.Session, word: Called) -> tuple[bool, Origin]:
    """Enter the next generation, or leave this one, at the boundary that all workers agreed on.

    Returns whether the state is synchronised in the generation that this worker then is in, and how the
    worker came into it.
    """
    if word.leave:
        session.leave()
    if word.aside:
        return session.step_aside().sync, Origin.NEW
    carried_out = session.enter(word)
    return carried_out.sync, Origin.STAYS if carried_out is word else Origin.BACK


class _DisagreementLimit:
    """The limit of disagreements between ranks. Going back to the last commit does not change the script."""

    def __init__(self) -> None:
        self._commits = -1
        self._in_a_row = 0

    def ends(self, error: Exception, commits: int) -> bool:
        """Whether the script gets this error: one disagreement too many, and no commit since the first."""
        if not (error.args and isinstance(error.args[0], Disagreement)):
            return False
        self._in_a_row = self._in_a_row + 1 if commits == self._commits else 1
        self._commits = commits
        return self._in_a_row >= DISAGREEMENTS_IN_A_ROW
