"""The hooks in PyTorch by which a script's calls reach its training loop, and its leader."""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from horovod_elastic import reproducible
from horovod_elastic.trace import say
from horovod_elastic.worker import departure, sigterm
from horovod_elastic.worker.ddp import own_workers

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.front_end import TorchFrontEnd
    from horovod_elastic.worker.session import Session

ELASTIC, BASE, BATCH_RULE = "FLEXO_ELASTIC", "FLEXO_BASE", "FLEXO_BATCH_RULE"
"""Variables that the agent sets: whether the job may grow, the workers of its base, and its batch rule."""
STORE_KEY = "torch/store"


@dataclass
class _Default:
    """torch.distributed's default group in this process."""

    front: TorchFrontEnd | None = None
    """None until init_process_group is called."""
    made: int = 0
    """How often init_process_group has made the group: a script may destroy it and make it again."""


_default = _Default()


def patch_torch(module: ModuleType) -> None:
    """Hook PyTorch, right after its import."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d

    hooks = {
        "init_process_group": _init,
        "destroy_process_group": _destroy,
        "new_group": _new_group,
        "broadcast_object_list": _broadcast_objects,
    }
    for name, hook in hooks.items():
        hooked = hook(getattr(distributed_c10d, name))
        for home in (dist, distributed_c10d):
            setattr(home, name, hooked)
    _patch_what_is_made()


def _patch_what_is_made() -> None:
    from torch import optim
    from torch.nn.parallel import distributed
    from torch.optim import swa_utils
    from torch.utils.data import dataloader
    from torch.utils.data import distributed as samplers

    from horovod_elastic import declared
    from horovod_elastic.worker.ddp import loaders, sources, torchs_own, training_loop

    loop = training_loop.current()
    declared.script.runtime = loop
    torchs_own.make_mesh_groups(loop.mesh_backend)
    torchs_own.around_every_step(loop.step)
    torchs_own.take_batches_from(lambda loader: loop.loaders.batches_of(loader, loop))
    loaders.patch_dataloader(dataloader, loop)
    sources.patch_sampler(samplers)
    _remember(optim.Optimizer, loop.captured.optimizer)
    _remember(distributed.DistributedDataParallel, loop.model_made)
    _remember(swa_utils.AveragedModel, loop.captured.averaged)
    register = distributed.DistributedDataParallel.register_comm_hook

    @functools.wraps(register)
    def register_comm_hook(self: Any, state: object, hook: Callable[..., Any]) -> None:
        loop.hook_registered(state)
        register(self, state, hook)

    distributed.DistributedDataParallel.register_comm_hook = register_comm_hook


def patch_fully_shard(module: ModuleType) -> None:
    """Hook PyTorch's FSDP, right after its import."""
    from horovod_elastic.worker.ddp import sharded, training_loop

    sharded.patch(module, training_loop.current())


def _remember(kind: Any, remember: Callable[[Any], None]) -> None:
    made = kind.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        remember(self)

    kind.__init__ = init


# --- torch.distributed ----------------------------------------------------------------------------------


def _init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        session = _session_for(rank, world_size)
        if session is None:
            return original(backend, init_method, timeout, world_size, rank, store, *args, **kwargs)
        sigterm.outlive()
        if _default.front is None:
            _default.front = _take_place(session, timeout)
        _set_variables(session)
        shared = _shared_store(session, _default.front)
        _default.made += 1
        common: dict[str, Any] = {"timeout": timeout, "store": shared, **kwargs}
        if not _is_resizable():
            common |= {"rank": session.rank, "world_size": session.size}
            return original(backend, **common)
        return _init_elastic(original, _default.front.group, backend, common)

    return init_process_group


def _session_for(rank: int, world_size: int) -> Session | None:
    """The session of this worker, if the call makes the group of the job's workers; else None."""
    if "FLEXO_WORKER_ID" in os.environ:  # this process has no session yet
        if own_workers.is_one(rank, world_size):
            from horovod_elastic.worker.ddp import script_frames

            own_workers.say_so(rank, script_frames.caller())
            return None
    elif "horovod_elastic.worker.session" not in sys.modules:
        return None
    from horovod_elastic.worker import session as sessions

    session = sessions.current()
    if not session.belongs_here():
        return None
    if session.core is not None and _default.front is None:
        return None  # the job's workers are connected by Horovod
    if world_size == 1 and os.environ.get("WORLD_SIZE") != "1":
        return None  # a group of this process alone
    return session


def _take_place(session: Session, timeout: timedelta | None) -> TorchFrontEnd:
    """Take this worker's place among the founders; a newcomer is alone until it joins."""
    from horovod_elastic.core import choice, python_layer
    from horovod_elastic.core.c10d.torch_core import TorchCore
    from horovod_elastic.worker.ddp import rates, torchs_own, training_loop, units
    from horovod_elastic.worker.ddp.deal import BatchRule
    from horovod_elastic.worker.ddp.default_group import DefaultGroup
    from horovod_elastic.worker.ddp.front_end import TorchFrontEnd
    from horovod_elastic.worker.ddp.unit_groups import UnitsGroup

    unit = units.meet() if os.environ.get(ELASTIC) == "1" else None
    group = DefaultGroup(0, 1) if unit is None else UnitsGroup(unit, _cannot_resize)
    users_own = python_layer.gloo_timeout_s() != choice.TORCH_TIMEOUT_S
    if unit is None and not users_own:
        group.patience = timeout or torchs_own.default_timeout()
    front = TorchFrontEnd(group)
    unit_size = 1 if unit is None else unit.size
    session.core = TorchCore(front, functools.partial(units.sets_across, size=unit_size))
    session.connect()
    if session.warming:
        session.core.alone()
        assert session.projected_rank is not None
        front.group.is_told(session.projected_rank.rank, session.projected_rank.size)
    else:
        session.found()
        front.group.take_place()
        front.group.muted = False
    atexit.register(_say_end)
    if _is_resizable():
        front.group.adds_in_order = reproducible.virtual_workers(os.environ) > 0
        base, rule = int(os.environ[BASE]), BatchRule(os.environ.get(BATCH_RULE) or "keep")
        rate_rule = rates.rule_in(os.environ.get(rates.VARIABLE, ""))
        training_loop.current().begin(session, front.group, base=base, rule=rule, rates=rate_rule)
    return front


def _is_resizable() -> bool:
    """Whether the script has an elastic group. In reproducible mode it has one at any size."""
    return os.environ.get(ELASTIC) == "1" or reproducible.virtual_workers(os.environ) > 0


def _say_end() -> None:
    """Say that the script has ended, if it has not called destroy_process_group, so that nobody joins it."""
    from horovod_elastic.worker.ddp import training_loop

    loop = training_loop.current()
    if not loop.runs or departure.is_leaving() or hasattr(sys, "last_value"):
        return
    if loop.is_new:
        say("this worker cannot join: its script has ended before it came to where the others are")
        os._exit(1)
    loop.finish()


def _set_variables(session: Session) -> None:
    """The variables of torchrun, for scripts that read them after init_process_group."""
    if session.warming or reproducible.virtual_workers(os.environ):
        return  # they are as the agent has set them
    place = session.place
    os.environ.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.size),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(place.local_size),
    )


def _shared_store(session: Session, front: TorchFrontEnd) -> Any:
    """A store that all founders share, which rank 0 keeps; a newcomer's own."""
    import torch.distributed as dist

    if session.warming or session.size == 1:
        return dist.HashStore()
    own, entries, key = front.address(), front.entries(), f"{STORE_KEY}/{_default.made}"
    if session.rank == 0:
        store = dist.TCPStore(own, 0, session.size, is_master=True, wait_for_workers=False)
        entries.set(key, f"{own} {store.port}")
    else:
        host, port = entries.get(key).decode().split()
        store = dist.TCPStore(host, int(port), session.size, is_master=False, wait_for_workers=False)
    os.environ.update(MASTER_ADDR=store.host, MASTER_PORT=str(store.port))
    return store


def _init_elastic(
    original: Callable[..., None], group: Any, backend: str | None, common: dict[str, Any]
) -> None:
    """Make `group` torch.distributed's default group."""
    import torch.distributed as dist

    from horovod_elastic.worker.ddp import torchs_own

    common = {name: value for name, value in common.items() if name not in ("pg_options", "device_id")}
    if _default.made == 1:
        dist.Backend.register_backend(
            torchs_own.BACKEND, lambda *_: group, extended_api=True, devices=["cpu", "cuda"]
        )
    original(torchs_own.BACKEND, rank=group.rank(), world_size=group.size(), **common)
    torchs_own.present_as(group, _backend_asked(backend), common["store"])


def _backend_asked(backend: str | None) -> str:
    import torch

    return backend or ("nccl" if torch.cuda.is_available() else "gloo")


def _new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_group(ranks: Sequence[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        from horovod_elastic.worker.ddp import script_frames, training_loop

        loop = training_loop.current()
        if loop.runs and loop.unit is None:  # with units, torch calls UnitsGroup's function
            assert _default.front is not None
            group = _default.front.group
            if loop.is_resizable and (ranks is None or sorted(ranks) == list(range(group.size()))):
                with group.makes_whole_groups():
                    return original(ranks, *args, **kwargs)
            loop.keep_size(f"dist.new_group() at {script_frames.caller()} makes a group of fixed ranks")
        return original(ranks, *args, **kwargs)

    return new_group


def _cannot_resize(ranks: Sequence[int]) -> None:
    from horovod_elastic.worker.ddp import script_frames, training_loop

    loop = training_loop.current()
    loop.keep_size(
        f"dist.new_group() at {script_frames.caller()} makes a group of the ranks {list(ranks)}. With"
        f" --elastic-unit={loop.unit and loop.unit.size}, a group is inside a unit, or has the same place of"
        " every unit"
    )


def _broadcast_objects(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def broadcast_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
        from horovod_elastic.worker.ddp import training_loop
        from horovod_elastic.worker.ddp.elastic_group import ElasticGroup

        loop = training_loop.current()
        group = kwargs.get("group") or (args[1] if len(args) > 1 else None)
        if loop.runs and loop.group.muted and (group is None or isinstance(group, ElasticGroup)):
            return  # alone, a worker has its own objects: there is none to unpickle
        own = list(object_list)
        try:
            original(object_list, *args, **kwargs)
        except (RuntimeError, EOFError, pickle.UnpicklingError):
            if not (loop.runs and loop.group.muted):
                raise
        if loop.runs and loop.group.muted:  # a worker has died meanwhile: what has come may be cut off
            object_list[:] = own

    return broadcast_object_list


def _destroy(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        import torch.distributed as dist

        from horovod_elastic.worker.ddp import training_loop

        if group is None or group is dist.group.WORLD:
            training_loop.current().end()
        original(group)

    return destroy_process_group
