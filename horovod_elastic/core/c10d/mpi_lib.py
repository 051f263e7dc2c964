"""The functions by which horovod.torch requests collectives: they turn calls into works and return handles.

As in Horovod, a RuntimeError means that the communicator has failed, and a ValueError that the call itself is
wrong. Horovod's Python layer turns a RuntimeError into a HorovodInternalError, from which it recovers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from horovod_elastic.core.c10d.requests import GLOBAL_SET, Operation, Reduction, Request
from horovod_elastic.core.c10d.work import Work

if TYPE_CHECKING:
    from horovod_elastic.core.c10d.layer import Layer

_REDUCED = ("Int", "Long", "Half", "Float", "Double", "BFloat16")
_MOVED = ("Byte", "Char", "Short", *_REDUCED)
"""Horovod's types of tensors, and bfloat16."""
_TYPES = {
    "allreduce": _REDUCED,
    "grouped_allreduce": _REDUCED,
    "allgather": _MOVED,
    "grouped_allgather": _MOVED,
    "broadcast": _MOVED,
    "alltoall": _MOVED,
    "reducescatter": _REDUCED,
    "grouped_reducescatter": _REDUCED,
}
Tensors = Sequence[torch.Tensor]
Name = bytes | str
"""The name that the script gave to a call; empty if it gave none."""


def make(layer: Layer) -> ModuleType:
    """The stand-in module. Horovod looks up its functions by operation and type of tensor."""
    module = ModuleType("horovod.torch.mpi_lib_v2", __doc__)
    functions = _Functions(layer)
    for operation, types in _TYPES.items():
        for kind in types:
            for place in ("torch", "torch_cuda"):
                name = f"horovod_torch_{operation}_async_{place}_{kind}Tensor"
                setattr(module, name, getattr(functions, operation))
    for name in ("join", "barrier", "poll", "wait_and_clear", "reset"):
        setattr(module, f"horovod_torch_{name}", getattr(functions, name))
    return module


class _Functions:
    """The module's functions. Those without a docstring return a handle.

    Their arguments have the order that horovod/torch/mpi_ops.py uses.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    # --- reducing -------------------------------------------------------------------------------------------

    def allreduce(
        self,
        tensor: torch.Tensor,
        output: torch.Tensor,
        divisor: int,
        name: Name,
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
    ) -> int:
        call = _Call(Operation.ALLREDUCE, "allreduce", name, process_set)
        return self._reduce(call, [tensor], [output], op, prescale, postscale, divisor)

    def grouped_allreduce(
        self,
        tensors: Tensors,
        outputs: Tensors,
        divisor: int,
        name: Name,
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
    ) -> int:
        call = _Call(Operation.ALLREDUCE, "grouped_allreduce", name, process_set, grouped=True)
        return self._reduce(call, tensors, outputs, op, prescale, postscale, divisor)

    def reducescatter(
        self,
        tensor: torch.Tensor,
        output: torch.Tensor,
        name: Name,
        op: int,
        process_set: int,
        prescale: float,
        postscale: float,
    ) -> int:
        call = _Call(Operation.REDUCESCATTER, "reducescatter", name, process_set)
        return self._scatter(call, [tensor], [output], op, prescale, postscale)

    def grouped_reducescatter(
        self,
        tensors: Tensors,
        outputs: Tensors,
        name: Name,
        op: int,
        process_set: int,
        prescale: float,
        postscale: float,
    ) -> int:
        call = _Call(Operation.REDUCESCATTER, "grouped_reducescatter", name, process_set, grouped=True)
        return self._scatter(call, tensors, outputs, op, prescale, postscale)

    def _scatter(
        self, call: _Call, tensors: Tensors, outputs: Tensors, op: int, prescale: float, postscale: float
    ) -> int:
        _refuse_scalars(call, tensors)
        if op not in (Reduction.AVERAGE, Reduction.SUM):
            raise ValueError("Reducescatter can only average and sum.")
        return self._reduce(call, tensors, outputs, op, prescale, postscale, divisor=1)

    def _reduce(
        self,
        call: _Call,
        tensors: Tensors,
        outputs: Tensors,
        op: int,
        prescale: float,
        postscale: float,
        divisor: int,
    ) -> int:
        reduction = Reduction(op)
        if reduction is Reduction.ADASUM:
            raise ValueError("The core on torch.distributed has no hvd.Adasum; flexo run --core=horovod has.")
        self._members(call)
        works = [
            part.work(call, reduction=reduction, prescale=prescale, postscale=postscale)
            for part in self._parts(call, tensors, outputs)
        ]
        if divisor > 1:
            return self._layer.submit(works, lambda: _divide(outputs, divisor))
        return self._layer.submit(works)

    # --- moving ---------------------------------------------------------------------------------------------

    def allgather(self, tensor: torch.Tensor, output: torch.Tensor, name: Name, process_set: int) -> int:
        call = _Call(Operation.ALLGATHER, "allgather", name, process_set)
        return self._gather(call, [tensor], [output])

    def grouped_allgather(self, tensors: Tensors, outputs: Tensors, name: Name, process_set: int) -> int:
        call = _Call(Operation.ALLGATHER, "grouped_allgather", name, process_set, grouped=True)
        return self._gather(call, tensors, outputs)

    def _gather(self, call: _Call, tensors: Tensors, outputs: Tensors) -> int:
        _refuse_scalars(call, tensors)
        self._members(call)
        return self._layer.submit([part.work(call) for part in self._parts(call, tensors, outputs)])

    def broadcast(
        self, tensor: torch.Tensor, output: torch.Tensor, root: int, name: Name, process_set: int
    ) -> int:
        call = _Call(Operation.BROADCAST, "broadcast", name, process_set)
        if root not in self._members(call):
            raise ValueError(f"broadcast received invalid root rank {root} for provided process set")
        (part,) = self._parts(call, [tensor], [output])
        return self._layer.submit([part.work(call, root=root)])

    def alltoall(
        self,
        tensor: torch.Tensor,
        splits: torch.Tensor,
        output: torch.Tensor,
        received_splits: torch.Tensor,
        name: Name,
        process_set: int,
    ) -> int:
        call = _Call(Operation.ALLTOALL, "alltoall", name, process_set)
        _refuse_scalars(call, [tensor])
        rows = _rows_for_each(tensor, splits, len(self._members(call)))
        sent = tensor.narrow(0, 0, sum(rows))
        (part,) = self._parts(call, [sent], [output])
        in_memory = torch.empty(0, dtype=torch.int32)

        def tell_received() -> None:
            received_splits.resize_(in_memory.shape).copy_(in_memory)

        work = part.work(call, splits=rows, received_splits=in_memory)
        return self._layer.submit([work], tell_received)

    # --- waiting --------------------------------------------------------------------------------------------

    def join(self, output: torch.Tensor, _device: int) -> int:
        work = Work(Request(Operation.JOIN, "join"))

        def tell_last() -> None:
            output.fill_(work.result)
            self._layer.count_anew()

        return self._layer.submit([work], tell_last)

    def barrier(self, process_set: int = GLOBAL_SET) -> int:
        self._members(_Call(Operation.BARRIER, "barrier", "", process_set))
        return self._layer.submit([Work(Request(Operation.BARRIER, "barrier", process_set=process_set))])

    def poll(self, handle: int) -> int:
        """1 if the call is finished, successfully or not, else 0."""
        return int(self._layer.poll(handle))

    def wait_and_clear(self, handle: int) -> None:
        """Wait until the call is finished."""
        self._layer.wait(handle)

    def reset(self) -> None:
        """Handle Horovod's shutdown: no handle is valid any more."""
        self._layer.forget_handles()

    # --- what they have in common ---------------------------------------------------------------------------

    def _members(self, call: _Call) -> Sequence[int]:
        """The members of the call's process set.

        Raises ValueError if the set is unknown or this rank is no member, RuntimeError without a
        communicator.
        """
        communicator = self._layer.present()
        place = communicator.place
        if call.process_set == GLOBAL_SET:
            return range(place.size)
        what = call.operation.name.capitalize()
        members = communicator.process_sets().get(call.process_set)
        if members is None:
            raise ValueError(f"{what}: Process set provided does not exist, or has not been registered.")
        if place.rank not in members:
            raise ValueError(f"{what}: Rank {place.rank} is not a member of the provided process set.")
        return members

    def _parts(self, call: _Call, tensors: Tensors, outputs: Tensors) -> Iterator[_Part]:
        """The tensors of one call, grouped by type: nearly always one part."""
        if len(tensors) > 1 and len({tensor.device for tensor in tensors}) > 1:
            raise ValueError("Tensors in list must be on same device.")
        name = self._layer.name(call.prefix, call.name, call.process_set)
        if len(tensors) == 1:
            tensor, output = _without_gradients(tensors[0], outputs[0])
            yield _Part(name, (tensor,), (output,))
            return
        kinds = list(dict.fromkeys(tensor.dtype for tensor in tensors))
        for kind in kinds:
            pairs = [
                _without_gradients(tensor, output)
                for tensor, output in zip(tensors, outputs, strict=True)
                if tensor.dtype == kind
            ]
            inputs, results = zip(*pairs, strict=True)
            yield _Part(name if len(kinds) == 1 else f"{name}.{kind}", inputs, results)


@dataclass(slots=True)  # not frozen: a step makes thousands of these, and freezing triples their cost
class _Call:
    operation: Operation
    prefix: str
    name: Name
    process_set: int
    grouped: bool = False


@dataclass(slots=True)
class _Part:
    name: str
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]

    def work(
        self,
        call: _Call,
        *,
        reduction: Reduction = Reduction.SUM,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = -1,
        splits: tuple[int, ...] = (),
        received_splits: torch.Tensor | None = None,
    ) -> Work:
        """A work for these tensors, with the request of `call`."""
        request = Request(
            operation=call.operation,
            name=self.name,
            dtype=str(self.inputs[0].dtype),
            shapes=tuple(tuple(tensor.shape) for tensor in self.inputs),
            on_gpu=self.inputs[0].is_cuda,
            reduction=reduction,
            prescale=prescale,
            postscale=postscale,
            root=root,
            process_set=call.process_set,
            splits=splits,
            grouped=call.grouped,
        )
        return Work(request, self.inputs, self.outputs, received_splits)


def _without_gradients(tensor: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same memory, for callers that write into it without autograd."""
    if output is tensor:
        tensor = output = tensor.detach() if tensor.requires_grad else tensor
        return tensor, output
    return (tensor.detach() if tensor.requires_grad else tensor), output


def _refuse_scalars(call: _Call, tensors: Tensors) -> None:
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(f"{call.operation.name.capitalize()} does not support scalar inputs.")


def _divide(outputs: Tensors, divisor: int) -> None:
    for output in outputs:
        if output.is_floating_point():
            output.div_(divisor)
        else:
            output.floor_divide_(divisor)


def _rows_for_each(tensor: torch.Tensor, splits: torch.Tensor, members: int) -> tuple[int, ...]:
    """The number of rows of `tensor` that go to each member. Raises ValueError if `splits` is invalid."""
    if splits.dim() > 1:
        raise ValueError("alltoall expects a 1D splits tensor")
    if splits.dtype != torch.int32:
        raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
    rows = tensor.shape[0]
    if splits.numel() == 0:
        if rows % members:
            raise ValueError(
                f"splits not provided, but the first dimension of the tensor, {rows}, is not an even "
                f"multiple of the number of workers, {members}."
            )
        return (rows // members,) * members
    given = tuple(splits.tolist())
    if len(given) != members:
        raise ValueError(f"{len(given)} entries in splits, but {members} workers.")
    if min(given) < 0:
        raise ValueError(f"Entries in splits must not be negative: {list(given)}.")
    if sum(given) > rows:
        raise ValueError(
            f"Sum of splits entries, {sum(given)}, is greater than the first dimension of tensor, {rows}."
        )
    return given
