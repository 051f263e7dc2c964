"""Every private call of PyTorch that the front end makes, so that a new release is checked in one place."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader

BACKEND = "flexo"
"""The name under which the elastic group is registered with torch.distributed."""

_BACKEND_TYPES = {"gloo": dist.ProcessGroup.BackendType.GLOO, "nccl": dist.ProcessGroup.BackendType.NCCL}


def plain_group(rank: int, size: int, gloo: Any) -> Any:
    """An ordinary ProcessGroup over this ProcessGroupGloo, unknown to torch.distributed's own tables."""
    group = dist.ProcessGroup(dist.HashStore(), rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    add_backend(group, "cpu", "gloo", gloo)
    return group


def gloo_alone() -> Any:
    """A ProcessGroupGloo of this process alone."""
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1)


def add_backend(group: Any, device: str, kind: str, backend: Any) -> None:
    """Have the group carry the tensors of that type of device with `backend`, of kind "gloo" or "nccl"."""
    group._register_backend(torch.device(device), _BACKEND_TYPES[kind], backend)


def present_as(group: Any, backend: str, store: Any) -> None:
    """Have torch.distributed say that the default group `group` uses `backend`, as the script asked for."""
    world = distributed_c10d._world
    world.pg_map[group] = (backend, store)
    world.pg_backend_config[group] = str(distributed_c10d.BackendConfig(dist.Backend(backend)))


def name_of(group: Any) -> str:
    """The name of a group in torch.distributed's tables."""
    return str(distributed_c10d._world.pg_names[group])


def has_ranks(group: Any, ranks: Iterable[int]) -> None:
    """Have torch.distributed's tables say that the group, if it is there, has these ranks of the world."""
    tables = distributed_c10d._world
    if group in tables.pg_map:
        tables.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}


def default_timeout() -> timedelta:
    """How long collectives of Gloo wait for other ranks where the script does not say it."""
    longest: timedelta = distributed_c10d.default_pg_timeout
    return longest


def have_wait(gloo: Any, longest: timedelta) -> None:
    """Have collectives of this ProcessGroupGloo wait so long for the other ranks from now on."""
    gloo._set_default_timeout(longest)


def gather_parts(group: Any, whole: torch.Tensor, own: torch.Tensor) -> None:
    """Gather all members' parts of a tensor, by rank."""
    group._allgather_base(whole, own).wait()


def set_name(group: Any, name: str) -> None:
    """Give a group its name in torch.distributed's tables."""
    group._set_group_name(name)


def make_mesh_groups(apart: Callable[[], str]) -> None:
    """Have a DeviceMesh make a group of its own for a dimension that has all ranks of the world.

    By default it takes the default group. `apart`: the backend of the groups; "": do as by default.
    """
    make = DeviceMesh._init_one_process_group

    def make_one(sub_layout: Any, rank_map: Any, dim_name: str, override: Any) -> Any:
        if override == (None, None) and (backend := apart()):
            override = backend, None
        return make(sub_layout, rank_map, dim_name, override)

    DeviceMesh._init_one_process_group = staticmethod(make_one)


def in_backward() -> bool:
    """Whether this thread carries out a backward pass now: DDP's hooks run then, and nothing of a script."""
    return torch._C._current_autograd_node() is not None


def bucket_layout(model: Any) -> str:
    """A digest of how a model, of DistributedDataParallel most often, cuts its gradients into messages.

    Ranks whose layouts differ would exchange messages of different lengths.
    """
    logged = model._get_ddp_logging_data() if isinstance(model, DistributedDataParallel) else {}
    names = (
        "has_rebuilt_buckets",
        "bucket_sizes",
        "rebuilt_bucket_sizes",
        "rebuilt_per_bucket_param_indices",
    )
    layout = [str(logged.get(name)) for name in names]
    shapes = [f"{name} {tuple(each.shape)} {each.dtype}" for name, each in model.named_parameters()]
    return hashlib.sha256("\n".join([*layout, *shapes]).encode()).hexdigest()[:16]


Closure = Callable[[], Any]
"""The function that computes the loss and the gradients, in a script that leaves that to an optimizer."""


def around_every_step(around: Callable[[Any, Callable[..., Any], Closure | None], Any]) -> None:
    """Have `around(optimizer, step, closure)` called for each step of an optimizer that is made from now on.

    `step()` takes the step, and `step(closure)` does so with another closure. torch.optim wraps the step of
    each class once, for its profiler; so does this.
    """
    profiled = torch.optim.Optimizer.profile_hook_step

    def wrapped(step: Callable[..., Any]) -> Callable[..., Any]:
        inner = profiled(step)

        @functools.wraps(inner)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            optimizer, *others = args
            closure = others.pop(0) if others else kwargs.pop("closure", None)

            def take(instead: Closure | None = closure) -> Any:
                given = [] if instead is None else [instead]
                return inner(optimizer, *given, *others, **kwargs)

            return around(optimizer, take, closure)

        return stepping

    torch.optim.Optimizer.profile_hook_step = staticmethod(wrapped)


def take_batches_from(batches_of: Callable[[Any], Any | None]) -> None:
    """Have a DataLoader's iterators take their batches' indices from `batches_of(loader)`, if not None."""
    own = DataLoader._index_sampler.fget

    def index_sampler(self: Any) -> Any:
        batches = batches_of(self)
        return own(self) if batches is None else batches

    DataLoader._index_sampler = property(index_sampler)


def renew_batches(loader: Any, batches: Any) -> None:
    """Have an iterator that a DataLoader keeps with its worker processes take these indices next."""
    if (kept := getattr(loader, "_iterator", None)) is not None:
        kept._index_sampler = batches


def before_every_fetch(prepare: Callable[[Any], None]) -> None:
    """Have `prepare(samples)` called before this process, a DataLoader's worker, loads a batch."""
    from torch.utils.data._utils import fetch

    own = fetch._MapDatasetFetcher.fetch

    def prepared(self: Any, samples: Any) -> Any:
        prepare(samples)
        return own(self, samples)

    fetch._MapDatasetFetcher.fetch = prepared


def own_batches(loader: Any) -> Any:
    """The batches' indices of a DataLoader over which flexo has no say."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def batch_of(loader: Any) -> int:
    """The samples of a batch of a DataLoader, if they are cut by PyTorch's own BatchSampler; else 0."""
    batches = loader.batch_sampler
    return batches.batch_size if type(batches) is BatchSampler and type(batches.batch_size) is int else 0


def set_batch(loader: Any, samples: int) -> None:
    """Give a DataLoader over a BatchSampler another batch. It refuses that in its attribute."""
    loader.batch_sampler.batch_size = samples
    if loader.batch_size is not None:
        vars(loader)["batch_size"] = samples


def end_worker_processes(loader: Any) -> None:
    """Have a DataLoader that keeps its worker processes begin others."""
    loader._iterator = None


def compile_nothing_of_flexo(trace_rules: Any) -> None:
    """Have torch.compile leave this package's functions alone (torch._dynamo.trace_rules)."""
    trace_rules.add("horovod_elastic")


def changes(tensor: torch.Tensor) -> int:
    """How often the tensor's memory was changed in place."""
    return int(tensor._version)


def random_states() -> Mapping[str, Any]:
    """The states of PyTorch's generators: of the CPU, and of this process's GPU if it uses one."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """The inverse of `random_states`."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
