"""PyTorch's private calls do what flexo takes them for. Runs on two releases: make test-torch.

Each private call stands in one of three files: of the front end, the core and GPU sharing. A test of the
sources says so.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import distributed_c10d  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from horovod_elastic.core.c10d import torchs_own as of_core  # noqa: E402
from horovod_elastic.sharing.layer import torchs_own as of_sharing  # noqa: E402
from horovod_elastic.worker.ddp import torchs_own  # noqa: E402

SOURCES = Path(torchs_own.__file__).parents[2]
ALLOWED = {"worker/ddp/torchs_own.py", "core/c10d/torchs_own.py", "sharing/layer/torchs_own.py"}
MINUTE = timedelta(seconds=60)


@pytest.fixture
def default_group() -> Iterator[Any]:
    """A default group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def gloo_alone() -> Any:
    device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    return of_core.gloo_group(dist.HashStore(), 0, 1, device, MINUTE)


# --- the core -----------------------------------------------------------------------------------------------


def test_many_tensors_are_copied_zeroed_and_multiplied_in_one_call() -> None:
    into = [torch.zeros(2), torch.zeros(3, dtype=torch.float64)]
    of_core.copy_each(into, [torch.tensor([1.0, 2.0]), torch.tensor([3, 4, 5])])
    of_core.multiply_each(into, 2.0)
    assert [each.tolist() for each in into] == [[2.0, 4.0], [6.0, 8.0, 10.0]]
    of_core.zero_each(into)
    assert [each.tolist() for each in into] == [[0.0, 0.0], [0.0, 0.0, 0.0]]


def test_a_group_of_gloo_is_made_on_a_device_of_ones_own() -> None:
    group, tensor = gloo_alone(), torch.ones(2)
    group.allreduce([tensor]).wait()
    assert (group.size(), tensor.tolist()) == (1, [1.0, 1.0])


def test_a_group_of_gloo_waits_for_its_members_as_long_as_it_is_told() -> None:
    device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    with pytest.raises(RuntimeError):
        of_core.gloo_group(dist.HashStore(), 0, 2, device, timedelta(milliseconds=50))


def test_options_of_a_group_take_a_timeout() -> None:
    options = dist.ProcessGroupGloo._Options()
    of_core.set_timeout(options, MINUTE)
    assert options._timeout == MINUTE
    if hasattr(dist, "ProcessGroupNCCL"):
        options = dist.ProcessGroupNCCL.Options()
        of_core.set_timeout(options, MINUTE)
        assert options._timeout == MINUTE


def test_a_gradient_scaler_that_was_interrupted_unscales_again() -> None:
    scaler, weight = torch.amp.GradScaler("cpu", init_scale=4.0), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="unscale_"):
        scaler.unscale_(optimizer)
    of_core.begin_step(scaler)
    scaler.unscale_(optimizer)
    assert weight.grad.item() == 0.25


# --- groups -------------------------------------------------------------------------------------------------


def test_a_plain_group_carries_collectives_and_torch_distributed_does_not_know_it() -> None:
    group = torchs_own.plain_group(0, 1, gloo_alone())
    tensor, everybodys = torch.tensor([2, 3]), [torch.zeros(2, dtype=torch.int64)]
    group.allgather([everybodys], [tensor]).wait()
    assert (group.rank(), group.size(), everybodys[0].tolist()) == (0, 1, [2, 3])
    assert not dist.is_initialized()


def test_a_backend_carries_the_tensors_of_its_device() -> None:
    group, meta = torchs_own.plain_group(0, 1, gloo_alone()), torch.device("meta")
    with pytest.raises(RuntimeError, match="meta"):
        group._get_backend(meta)
    backend = gloo_alone()
    torchs_own.add_backend(group, "meta", "nccl", backend)  # PyTorch keeps one of each kind
    assert group._get_backend(meta) is backend
    assert group._get_backend(torch.device("cpu")) is not backend


def test_the_default_group_is_presented_as_the_backend_that_was_asked_for(default_group: Any) -> None:
    torchs_own.present_as(default_group, "nccl", dist.HashStore())
    assert dist.get_backend() == "nccl"
    torchs_own.present_as(default_group, "gloo", dist.HashStore())
    assert (dist.get_backend(), dist.get_backend_config()) == ("gloo", "cpu:gloo,cuda:gloo")


def test_a_group_has_the_name_by_which_pytorch_finds_it(default_group: Any) -> None:
    name = torchs_own.name_of(default_group)
    assert distributed_c10d._resolve_process_group(name) is default_group


def test_ranks_follow_the_size_that_is_told(default_group: Any) -> None:
    assert dist.get_process_group_ranks(default_group) == [0]
    torchs_own.has_ranks(default_group, range(3))
    assert dist.get_process_group_ranks(default_group) == [0, 1, 2]
    assert [dist.get_global_rank(default_group, rank) for rank in range(3)] == [0, 1, 2]
    torchs_own.has_ranks(default_group, range(1))


def test_a_group_that_is_not_there_has_no_ranks() -> None:
    torchs_own.has_ranks(torchs_own.plain_group(0, 1, gloo_alone()), range(3))
    assert not dist.is_initialized()


# --- models and optimizers ----------------------------------------------------------------------------------


def test_hooks_of_gradients_run_in_a_backward_pass_and_a_script_does_not() -> None:
    told = []
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda _: told.append(torchs_own.in_backward()))
    weight.register_post_accumulate_grad_hook(lambda _: told.append(torchs_own.in_backward()))
    loss = weight.sum()
    assert not torchs_own.in_backward()
    loss.backward()
    assert told == [True, True]
    assert not torchs_own.in_backward()


def test_reductions_of_gradients_are_in_a_backward_pass(default_group: Any) -> None:
    """DistributedDataParallel calls its hook from C++."""
    told = []

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # PyTorch reads annotations
        told.append(torchs_own.in_backward())
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model = DistributedDataParallel(nn.Linear(2, 1))
    model.register_comm_hook(None, hook)
    model(torch.ones(1, 2)).sum().backward()
    assert told == [True]


def test_the_layout_of_gradient_messages_differs_as_models_and_buckets_do(default_group: Any) -> None:
    def layout(model: Any, cap_mb: float = 25, rounds: int = 3) -> str:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
        for _ in range(rounds):
            wrapped(torch.ones(1, 64)).sum().backward()
        return torchs_own.bucket_layout(wrapped)

    def net(width: int) -> Any:
        return nn.Sequential(nn.Linear(64, width), nn.Linear(width, 64), nn.Linear(64, 1))

    usual = layout(net(256))
    assert usual == layout(net(256))
    assert usual != layout(net(255)), "other shapes"
    assert usual != layout(net(256), cap_mb=0.01), "other buckets"
    assert usual != layout(net(256), rounds=1), "buckets are built anew after the first pass"


def new_class(kind: Any) -> Any:
    """A class of optimizers whose step is not wrapped yet: PyTorch wraps that of a class once."""

    def step(self: Any, closure: Any = None) -> Any:
        return kind.step(self, closure)

    return type(kind.__name__, (kind,), {"step": step})


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop", "Adagrad"])
def test_each_step_of_an_optimizer_is_surrounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def around(optimizer: Any, take: Any, closure: Any) -> Any:
        calls.append((type(optimizer).__name__, closure))
        return None if skip else take()

    monkeypatch.setattr(torch.optim.Optimizer, "profile_hook_step", torch.optim.Optimizer.profile_hook_step)
    made = new_class(getattr(torch.optim, kind))
    torchs_own.around_every_step(around)
    weight = nn.Parameter(torch.ones(1))
    optimizer = made([weight], lr=0.5)
    weight.grad = torch.ones(1)
    skip = True
    optimizer.step()
    assert weight.item() == 1.0, "a step that is not taken changes nothing"
    skip = False
    optimizer.step()
    assert weight.item() < 1.0
    assert optimizer.step(lambda: torch.tensor(7.0)) == 7.0
    assert [name for name, _ in calls] == [kind] * 3
    assert calls[2][1] is not None


def test_a_step_can_be_taken_with_another_closure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.Optimizer, "profile_hook_step", torch.optim.Optimizer.profile_hook_step)
    made = new_class(torch.optim.SGD)
    torchs_own.around_every_step(lambda _, take, closure: take(lambda: closure() + 1))
    optimizer = made([nn.Parameter(torch.ones(1))], lr=0.5)
    assert optimizer.step(closure=lambda: 1) == 2


def test_changes_of_a_tensor_are_counted() -> None:
    tensor = torch.zeros(2)
    before = torchs_own.changes(tensor)
    tensor.sum()
    assert torchs_own.changes(tensor) == before
    tensor.add_(1)
    tensor[0] = 5
    assert torchs_own.changes(tensor) == before + 2


# --- loaders ------------------------------------------------------------------------------------------------


@pytest.fixture
def dealt(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[list[int]]]:
    """By the identity of a loader, the batches that it is to give."""
    batches: dict[int, list[list[int]]] = {}
    monkeypatch.setattr(DataLoader, "_index_sampler", DataLoader._index_sampler)
    torchs_own.take_batches_from(lambda loader: batches.get(id(loader)))
    return batches


def loader(**how: Any) -> Any:
    return DataLoader(TensorDataset(torch.arange(10)), batch_size=2, **how)


def given(batches: Any) -> list[list[int]]:
    return [batch.tolist() for (batch,) in batches]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.processes)])
def test_a_loader_takes_the_batches_that_it_is_dealt(dealt: dict[int, list[list[int]]], workers: int) -> None:
    ours, other = loader(num_workers=workers), loader()
    dealt[id(ours)] = [[7], [1, 2, 3]]
    assert given(ours) == [[7], [1, 2, 3]]
    assert len(ours) == 2
    assert given(other) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.processes
def test_an_iterator_that_is_kept_takes_other_batches_in_the_next_epoch(
    dealt: dict[int, list[list[int]]],
) -> None:
    ours = loader(num_workers=1, persistent_workers=True)
    dealt[id(ours)] = [[7], [8]]
    assert given(ours) == [[7], [8]]
    dealt[id(ours)] = [[3, 4]]
    torchs_own.renew_batches(ours, dealt[id(ours)])
    assert given(ours) == [[3, 4]]
    del ours
    gc.collect()


def test_a_loader_that_keeps_no_iterator_has_nothing_to_renew(dealt: dict[int, list[list[int]]]) -> None:
    torchs_own.renew_batches(loader(), [[1]])


# --- torch.compile and random numbers -----------------------------------------------------------------------


def test_torch_compile_leaves_flexos_functions_alone() -> None:
    from torch._dynamo import trace_rules

    torchs_own.compile_nothing_of_flexo(trace_rules)
    assert trace_rules.check_file(torchs_own.__file__).skipped
    assert not trace_rules.check_file(str(Path(__file__).parent / "train.py")).skipped


def test_random_numbers_go_on_where_a_state_was_taken() -> None:
    torch.manual_seed(3)
    states = torchs_own.random_states()
    first = torch.rand(3)
    torchs_own.set_random_states(states)
    assert torch.equal(torch.rand(3), first)


# --- GPU sharing --------------------------------------------------------------------------------------------


def test_a_call_waits_until_cuda_begins() -> None:
    called: list[str] = []
    of_sharing.when_cuda_begins(lambda: called.append("begun"))
    assert bool(called) == torch.cuda.is_initialized() == of_sharing.cuda_is_in_use()


# --- the rest of flexo --------------------------------------------------------------------------------------

SEVERAL = torch.optim.lr_scheduler.ChainedScheduler(
    [torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), 2)]
)
_HOLDERS = (
    *(torch, torch._C, torch.distributed, distributed_c10d, torch.Tensor, nn.Module, DistributedDataParallel),
    *(dist.ProcessGroup, dist.ProcessGroupGloo, dist.Work, distributed_c10d._world, torch.optim.Optimizer),
    *(torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler("cpu"), torch.futures.Future, SEVERAL),
    *(DataLoader, torch.utils.data.dataloader._BaseDataLoaderIter, torch.utils.data.Dataset),
)
"""Modules, classes and objects of PyTorch whose private names count."""


def test_no_other_file_calls_private_names_of_pytorch() -> None:
    names = {name for holder in _HOLDERS for name in dir(holder) if is_private(name)}
    names |= {name for name in dir(dist.ProcessGroupGloo._Options) if is_private(name)}
    # Those of torch.cuda that sharing uses; the rest of them are ordinary words elsewhere.
    names |= {"_lazy_call", "_is_in_bad_fork"}
    trees = {path: ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")}
    found = []
    for path, tree in trees.items():
        if (file := path.relative_to(SOURCES).as_posix()) not in ALLOWED:
            own = set(own_names(tree))
            found += [f"{file}:{line} {name}" for name, line in used(tree) if name in names - own]
    assert found == []
    front_end = SOURCES / "worker" / "ddp" / "torchs_own.py"
    assert {"_register_backend", "_world", "_index_sampler"} <= {name for name, _ in used(trees[front_end])}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def used(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Private names of other objects, and those that are imported from PyTorch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            for part in (*(node.module or "").split("."), *(each.name for each in node.names)):
                if is_private(part):
                    yield part, node.lineno


def own_names(tree: ast.Module) -> Iterator[str]:
    """Private names that the file itself gives: functions, methods, and attributes of its objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{node.attr}":
            yield node.attr
