"""The rules of the check: constructs of PyTorch that tie a job to the number of its workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from horovod_elastic.script_check.tree import Place

Found = Iterator[tuple[str, str]]
"""Rules and sentences."""


@dataclass(frozen=True, slots=True)
class _Called:
    """Functions and classes whose mere use is a finding. `module`: how their modules' names begin."""

    rule: str
    module: str
    names: frozenset[str]
    what: str


def _called(rule: str, module: str, names: str, what: str) -> _Called:
    return _Called(rule, module, frozenset(names.split()), what)


_UNITS = ". For replicas of several workers, see flexo run --elastic-unit"

_CALLED = (
    _called(
        "new-group",
        "torch.distributed",
        "new_group new_subgroups new_subgroups_by_enumeration split_group",
        "makes a group of fixed ranks. Collectives of all workers need no group" + _UNITS,
    ),
    _called(
        "device-mesh",
        "torch.distributed",
        "init_device_mesh DeviceMesh",
        "arranges a fixed number of ranks" + _UNITS,
    ),
    _called(
        "fsdp",
        "torch.distributed",
        "FullyShardedDataParallel FSDP fully_shard",
        "shards the model over the workers. DistributedDataParallel keeps it whole on each" + _UNITS,
    ),
    _called(
        "tensor-parallel",
        "torch.distributed",
        "parallelize_module distribute_tensor distribute_module PipelineStage",
        "splits the model over the workers" + _UNITS,
    ),
    _called(
        "zero-redundancy",
        "torch.distributed.optim",
        "ZeroRedundancyOptimizer",
        "shards the optimizer's state over the workers. Use the optimizer itself",
    ),
    _called("rpc", "torch.distributed.rpc", "init_rpc", "names a fixed number of workers"),
    _called("deepspeed", "deepspeed", "initialize", "shards the state over the workers (DeepSpeed)"),
    _called(
        "cuda-graphs",
        "torch.cuda",
        "CUDAGraph graph make_graphed_callables",
        "captures kernels, and with them the collectives of one group of workers",
    ),
    _called(
        "spawn",
        "torch.multiprocessing",
        "spawn start_processes",
        "starts the workers itself, and so does flexo run. Call the workers' function once in each process",
    ),
    _called(
        "fsdp",
        "accelerate",
        "FullyShardedDataParallelPlugin",
        "shards the model over the workers (FSDP)",
    ),
    _called("deepspeed", "accelerate", "DeepSpeedPlugin", "shards the state over the workers (DeepSpeed)"),
    _called("iterable-dataset", "webdataset", "WebDataset", "has no length and no order that flexo can deal"),
    *(
        _called(
            "fsdp", module, "FSDPStrategy ModelParallelStrategy", "shards the model over the workers (FSDP)"
        )
        for module in ("lightning", "pytorch_lightning")
    ),
    *(
        _called("deepspeed", module, "DeepSpeedStrategy", "shards the state over the workers (DeepSpeed)")
        for module in ("lightning", "pytorch_lightning")
    ),
)
_SHARDING_OPTIONS = ("fsdp", "deepspeed", "fsdp_plugin", "deepspeed_plugin", "megatron_lm_plugin")
_CUT = ("chunk", "split", "tensor_split", "array_split")
_CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "datetime.datetime.now")


def of(place: Place) -> Found:
    """What this node violates."""
    node = place.node
    if isinstance(node, ast.Call):
        yield from _call(place, node)
        yield from _options(place, node)
        yield from _shards_by_call(place, node)
    elif isinstance(node, ast.Subscript):
        yield from _shards_by_index(place, node)
    elif isinstance(node, ast.Compare):
        yield from _shards_by_remainder(place, node)
    elif isinstance(node, ast.ClassDef):
        yield from _class(place, node)


def _matches(place: Place, expression: ast.expr) -> _Called | None:
    name = place.source.full(expression)
    begin, _, last = name.rpartition(".")
    begins = [begin] if begin else place.source.stars
    for each in _CALLED:
        if last in each.names and any(f"{module}.".startswith(f"{each.module}.") for module in begins):
            return each
    return None


def _call(place: Place, call: ast.Call) -> Found:
    uses = [call.func]
    if place.source.full(call.func) in ("functools.partial", "partial"):
        uses += call.args[:1]
    for use in uses:
        rule = _matches(place, use)
        if rule is not None and not (rule.rule == "new-group" and _is_of_all_ranks(place, call)):
            yield rule.rule, f"{_shown(use)}() {rule.what}"
    if isinstance(call.func, ast.Attribute) and call.func.attr == "register_comm_hook":
        state = call.args[0] if call.args else _option(call, "state")
        if state is not None and not (isinstance(state, ast.Constant) and state.value is None):
            yield (
                "comm-hook-state",
                "register_comm_hook() with a state: flexo does not know the state, so a new worker would"
                " not get it. A hook without a state may stay",
            )


def _is_of_all_ranks(place: Place, call: ast.Call) -> bool:
    """Whether this call of new_group makes a group of all workers, which is elastic."""
    if place.source.full(call.func).rpartition(".")[2] != "new_group":
        return False
    ranks = call.args[0] if call.args else _option(call, "ranks")
    while isinstance(ranks, ast.Call) and len(ranks.args) == 1 and not ranks.keywords:
        if not isinstance(ranks.func, ast.Name) or ranks.func.id not in ("list", "range"):
            break
        ranks = ranks.args[0]
    return (
        ranks is None
        or (isinstance(ranks, ast.Constant) and ranks.value is None)
        or place.ranks.is_size(ranks)
    )


def _options(place: Place, call: ast.Call) -> Found:
    """Options of frameworks by which they shard."""
    name = place.source.full(call.func).rpartition(".")[2]
    for keyword in call.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ...
        if keyword.arg in _SHARDING_OPTIONS and value not in (None, "", False):
            yield keyword.arg.partition("_")[0], f"{name}({keyword.arg}=...) shards the model or its state"
        if keyword.arg == "strategy" and isinstance(value, str) and value.startswith(("fsdp", "deepspeed")):
            yield value.partition("_")[0], f"{name}(strategy={value!r}) shards the model or its state"
        if name == "load_dataset" and keyword.arg == "streaming" and value is True:
            yield (
                "iterable-dataset",
                "load_dataset(streaming=True) gives a dataset without a length, which flexo cannot deal out",
            )


# --- samples that a script deals out itself ---------------------------------------------------------------

OWN_SAMPLER = "own-sampler"
"""Whether such a sampler keeps the size shows when the job begins (worker/ddp/own_samplers.py)."""
_TRIED = (
    "is a sampler of the script's own. The job grows if the sampler has its number of ranks and its rank as"
    " attributes, and gives the whole epoch to a rank that is the only one. flexo tries that out"
)
_STATIC = (
    "deals the samples out by the present number of workers, and keeps to that after a resize. Give the whole"
    " dataset to a DistributedSampler"
)


def _shards_by_index(place: Place, node: ast.Subscript) -> Found:
    ranks, index = place.ranks, node.slice
    if isinstance(index, ast.Slice) and (ranks.is_size(index.step) or ranks.is_rank(index.lower)):
        yield "static-shards", f"{ast.unparse(node)} {_STATIC}"
    elif isinstance(node.value, ast.Call) and ranks.is_rank(index):
        name = node.value.func
        cuts = isinstance(name, ast.Attribute) and name.attr in _CUT
        if cuts and any(ranks.is_size(each) for each in node.value.args):
            yield "static-shards", f"{ast.unparse(node)} {_STATIC}"


def _shards_by_call(place: Place, call: ast.Call) -> Found:
    ranks, name = place.ranks, place.source.full(call.func)
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    last = call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]
    by_both = any(map(ranks.is_rank, values)) and any(map(ranks.is_size, values))
    if by_both and last in ("range", "islice", "shard", "split_dataset_by_node"):
        yield "static-shards", f"{ast.unparse(call)} {_STATIC}"
    named = {keyword.arg for keyword in call.keywords}
    own = name.startswith("torch.utils.data") or last == "DistributedSampler"
    if {"num_replicas", "rank"} <= named and not own:
        yield OWN_SAMPLER, f"{last}(num_replicas=..., rank=...) {_TRIED}"


def _shards_by_remainder(place: Place, node: ast.Compare) -> Found:
    left, rights = node.left, node.comparators
    is_remainder = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod)
    if is_remainder and place.ranks.is_size(left.right) and any(map(place.ranks.is_rank, rights)):  # type: ignore[attr-defined]
        yield "static-shards", f"{ast.unparse(node)} {_STATIC}"


def _class(place: Place, node: ast.ClassDef) -> Found:
    for base in node.bases:
        name = place.source.full(base).rpartition(".")[2]
        if name == "DistributedSampler" or (name == "Sampler" and _knows_size(place, node)):
            yield OWN_SAMPLER, f"class {node.name} {_TRIED}"
        elif name == "BatchSampler" and _knows_size(place, node):
            yield "sampler", f"class {node.name} {_STATIC}"


def _knows_size(place: Place, node: ast.ClassDef) -> bool:
    return any(place.ranks.is_size(each) for each in ast.walk(node) if isinstance(each, ast.expr)) or any(
        argument.arg in ("num_replicas", "world_size")
        for argument in ast.walk(node)
        if isinstance(argument, ast.arg)
    )


# --- training loops -------------------------------------------------------------------------------------


def trains(loop: ast.For | ast.While) -> bool:
    """Whether a loop has a backward pass, and no loop inside of it has."""
    inner = [each for each in ast.walk(loop) if isinstance(each, ast.For | ast.While) and each is not loop]
    return has_backward(loop) and not any(map(has_backward, inner))


def takes_no_batch(place: Place) -> bool:
    """Whether this loop trains, but neither it nor a loop around it goes over anything like a loader."""
    node = place.node
    if not isinstance(node, ast.For | ast.While) or not trains(node):
        return False
    for loop in (node, *place.loops()):
        if isinstance(loop, ast.For) and place.source.full(getattr(loop.iter, "func", None)) != "range":
            return False
        calls = [each.func for each in ast.walk(loop) if isinstance(each, ast.Call)]
        if any(isinstance(each, ast.Name) and each.id == "next" for each in calls):
            return False
    return True


def leaves_by_itself(place: Place) -> str:
    """The condition, if this is a `break` out of a training loop by a condition of this process alone."""
    loops = place.loops()
    if not isinstance(place.node, ast.Break) or not loops or not trains(loops[0]):
        return ""
    inside = place.around[place.around.index(loops[0]) :]
    for outer in inside:
        if isinstance(outer, ast.If) and _is_local(place, outer.test):
            return ast.unparse(outer.test)
    return ""


def _is_local(place: Place, test: ast.expr) -> bool:
    for node in ast.walk(test):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if "loss" in name.lower() or place.ranks.is_rank(node):
            return True
        if isinstance(node, ast.Call) and place.source.full(node.func) in _CLOCKS:
            return True
    return False


def has_backward(node: ast.AST) -> bool:
    """Whether something in it calls `backward`."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in calls)


def _option(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _shown(expression: ast.expr) -> str:
    return ast.unparse(expression)
