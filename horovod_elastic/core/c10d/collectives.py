"""Carries out the operations that the ranks agreed on: one response at a time, on a communicator's groups.

Results are those of Horovod's native library. Reductions use Gloo's or NCCL's all-reduce: all members get the
same bits, and the same bits again in another run. All other operations move bytes, so they work for every
type.

Tensors on a GPU go through NCCL if this PyTorch has it, on a stream of this thread's own. The stream waits
for the inputs' values, and users of the results wait for the stream. Without NCCL, the tensors are copied
into memory and back. So they are where Aggregators make the sums: NCCL does not go on without a rank that
dies, and does not even notice its death.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from horovod_elastic.core.c10d import torchs_own
from horovod_elastic.core.c10d.groups import Groups
from horovod_elastic.core.c10d.packing import Packing, Packings, Shapes, parts, scale
from horovod_elastic.core.c10d.requests import GLOBAL_SET, Operation, Reduction, Request, Response
from horovod_elastic.core.c10d.sums import MOST_SHARED_BYTES, Sums
from horovod_elastic.core.c10d.work import Work

EXCHANGE_TAG = 1
"""The tag of messages between two members. GlooTransport has a tag of its own."""
_MEMORY = torch.device("cpu")
_REDUCTIONS: Mapping[Reduction, Any] = {
    Reduction.AVERAGE: dist.ReduceOp.SUM,
    Reduction.SUM: dist.ReduceOp.SUM,
    Reduction.MIN: dist.ReduceOp.MIN,
    Reduction.MAX: dist.ReduceOp.MAX,
    Reduction.PRODUCT: dist.ReduceOp.PRODUCT,
}
_REDUCED_BY_TORCH: Mapping[Reduction, Callable[[torch.Tensor, int], torch.Tensor]] = {
    Reduction.AVERAGE: torch.sum,
    Reduction.SUM: torch.sum,
    Reduction.MIN: torch.amin,
    Reduction.MAX: torch.amax,
    Reduction.PRODUCT: torch.prod,
}
_REDUCED_AS = {torch.int16: torch.int32, torch.bool: torch.int32}
"""Types that Gloo or NCCL cannot reduce, or not in the type's own sense, with the type to use instead."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A response with everything that is needed to carry it out."""

    response: Response
    works: Sequence[Work | None]
    members: tuple[int, ...]
    place: int
    """This rank's index in `members`."""
    group: Any
    """The process group; None if this rank is the only member."""
    device: torch.device

    @property
    def work(self) -> Work:
        """The only work, for a response with one request. Raises RuntimeError if this rank has joined."""
        (work,) = self.works
        if work is None:
            raise RuntimeError("a rank that has joined cannot take part in it")
        return work

    def inputs(self) -> list[torch.Tensor | None]:
        """The inputs of all works; None for each tensor that this rank does not contribute."""
        return list(
            itertools.chain.from_iterable(
                [None] * len(request.shapes) if work is None else work.inputs
                for request, work in zip(self.response.requests, self.works, strict=True)
            )
        )

    def outputs(self) -> list[torch.Tensor | None]:
        """The outputs of all works; None for each tensor that this rank does not contribute."""
        return list(
            itertools.chain.from_iterable(
                [None] * len(request.shapes) if work is None else map(_plain, work.outputs)
                for request, work in zip(self.response.requests, self.works, strict=True)
            )
        )


class Collectives:
    """Carries out responses (see the module). Only one thread uses it."""

    def __init__(self, groups: Groups, rank: int, sums: Sums | None = None) -> None:
        """`sums`: makes the sums of all ranks' floating-point tensors, in place of all-reduces."""
        self.gpu: torch.device | None = None
        """The GPU of the last operation that went through NCCL; None if there was none."""
        self._groups = groups
        self._rank = rank
        self._sums = sums
        self._packings = Packings()
        self._streams: dict[torch.device, Any] = {}
        self._operations: Mapping[Operation, Callable[[_Task], None]] = {
            Operation.ALLREDUCE: self._allreduce,
            Operation.ALLGATHER: self._allgather,
            Operation.BROADCAST: self._broadcast,
            Operation.ALLTOALL: self._alltoall,
            Operation.REDUCESCATTER: self._reducescatter,
        }

    def carry_out(self, response: Response, works: Sequence[Work | None]) -> None:
        """Fill the works' outputs and finish the works.

        `works`: one work per request, in the same order; None if this rank has joined. A rank that has joined
        contributes zeros, and to all-reduces only. Raises RuntimeError if the group fails; then no work is
        finished.
        """
        with torch.no_grad():
            if not response.requests[0].on_gpu:
                self._carry_out(response, works, _MEMORY)
            elif self._sums is None and dist.is_nccl_available():
                self._carry_out_on_gpu(response, works)
            else:
                self._carry_out_in_memory(response, works)
        for work in works:
            if work is not None:
                work.finish()

    def _carry_out(self, response: Response, works: Sequence[Work | None], device: torch.device) -> None:
        request = response.requests[0]
        members = self._groups.members(request.process_set)
        group = None
        if len(members) > 1:
            on_gpu = device.type == "cuda"
            gloo, nccl = self._groups.gloo, self._groups.nccl
            group = nccl(request.process_set, device) if on_gpu else gloo(request.process_set)
        task = _Task(response, works, members, members.index(self._rank), group, device)
        self._operations[request.operation](task)

    # --- the operations -----------------------------------------------------------------------------------

    def _allreduce(self, task: _Task) -> None:
        requests = task.response.requests
        shapes = tuple(itertools.chain.from_iterable(request.shapes for request in requests))
        dtype = _dtype(requests[0])
        if self._sums is not None and _is_global_sum(task) and self._sums.can(shapes, dtype):
            summing = self._sums.begin(shapes, dtype, task.inputs(), requests[0].prescale)
            average = requests[0].reduction is Reduction.AVERAGE
            summing.take(task.outputs(), _postscale(task), average=average, of_gradients=True)
            return
        work = task.works[0]
        if len(shapes) == 1 and dtype not in _REDUCED_AS and work is not None:
            output = _plain(work.outputs[0])
            _copy(output, work.inputs[0])
            prepared = parts([output])
            scale(prepared, requests[0].prescale)
            self._reduce(task, output)
            scale(prepared, _postscale(task))
            return
        packing = self._packed(task, shapes, dtype)
        packing.scale(_postscale(task))
        packing.copy_to(task.outputs())

    def _reducescatter(self, task: _Task) -> None:
        """Reduce all rows at every member; each member keeps its own rows."""
        request = task.response.requests[0]
        packing = self._packed(task, request.shapes, _dtype(request))
        mine = [view[_rows(len(view), task.place, len(task.members))] for view in packing.views]
        scale(parts(mine), _postscale(task))
        for rows, output in zip(mine, task.work.outputs, strict=True):
            _copy(output.resize_(rows.shape), rows)

    def _packed(self, task: _Task, shapes: Shapes, dtype: torch.dtype) -> Packing:
        """A packing of all inputs, scaled and reduced over all members in one operation."""
        packing = self._packings.of(shapes, _REDUCED_AS.get(dtype, dtype), task.device)
        packing.fill(task.inputs())
        packing.scale(task.response.requests[0].prescale)
        self._reduce(task, packing.flat)
        return packing

    def _reduce(self, task: _Task, tensor: torch.Tensor) -> None:
        """Reduce the tensor in place over all members."""
        reduction = task.response.requests[0].reduction
        if reduction not in _REDUCTIONS:
            raise RuntimeError(f"{reduction.name} is not among the reductions of this core")
        if self._sums is not None and _is_small(task, tensor.view(-1), tensor.numel() * len(task.members)):
            _reduce_as_sum(self._sums, task, tensor)
        elif task.group is not None and tensor.numel():
            task.group.allreduce(tensor, _REDUCTIONS[reduction]).wait()

    def _allgather(self, task: _Task) -> None:
        pending = []
        work = task.work
        tensors = zip(work.inputs, work.outputs, task.response.first_dimensions, strict=True)
        for tensor, output, dimensions in tensors:
            if self._sums is not None and _is_small(task, tensor, sum(dimensions)):
                _gather_as_sum(self._sums, task, tensor, output, dimensions)
                continue
            output.resize_(sum(dimensions), *tensor.shape[1:])
            pending += _exchange(task, [_bytes(tensor)] * len(dimensions), _in_rows(output, dimensions))
        for transfer in pending:
            transfer.wait()

    def _alltoall(self, task: _Task) -> None:
        work = task.work
        (tensor,), (output,) = work.inputs, work.outputs
        splits = task.response.splits
        received = [row[task.place] for row in splits]
        output.resize_(sum(received), *tensor.shape[1:])
        sent = _in_rows(tensor, splits[task.place])
        for transfer in _exchange(task, sent, _in_rows(output, received)):
            transfer.wait()
        if work.received_splits is not None:
            work.received_splits.resize_(len(received)).copy_(torch.tensor(received))

    def _broadcast(self, task: _Task) -> None:
        root = task.members.index(task.response.requests[0].root)
        output = _plain(task.work.outputs[0])
        if task.place == root:
            _copy(output, task.work.inputs[0])
        if self._sums is not None and _is_small(task, output, len(output) if output.dim() else 1):
            whole = self._sums.share(output.nbytes, 0, _bytes(output) if task.place == root else None)
            data, ranks = whole.result()
            if root not in ranks:
                raise RuntimeError(f"rank {root} has died before it could broadcast")
            _copy(_bytes(output), data)
        elif task.group is not None and output.numel():
            options = dist.BroadcastOptions()
            options.rootRank = root
            options.rootTensor = 0
            task.group.broadcast([_bytes(output)], options).wait()

    # --- tensors on a GPU ---------------------------------------------------------------------------------

    def _carry_out_on_gpu(self, response: Response, works: Sequence[Work | None]) -> None:
        mine = [work for work in works if work is not None]
        # A rank that has joined has none of the tensors: it uses the GPU of the last operation.
        device = mine[0].inputs[0].device if mine else self.gpu or torch.device("cuda", 0)
        self.gpu = device
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = self._streams[device]
        with torch.cuda.device(device), torch.cuda.stream(stream):
            for work in mine:
                stream.wait_event(work.submitted_on)
                for tensor in (*work.inputs, *work.outputs):
                    tensor.record_stream(stream)
            self._carry_out(response, works, device)
            # Nobody may use the results before it is known that no member has failed.
            stream.synchronize()
        self._groups.check_whole()

    def _carry_out_in_memory(self, response: Response, works: Sequence[Work | None]) -> None:
        copies = [None if work is None else _in_memory(work) for work in works]
        self._carry_out(response, copies, _MEMORY)
        for work, copy in zip(works, copies, strict=True):
            if work is not None and copy is not None:
                _out_of_memory(copy, work)


def _dtype(request: Request) -> torch.dtype:
    dtype = getattr(torch, request.dtype.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, hidden from autograd: as in Horovod's core, autograd does not record writes to it."""
    return tensor.data


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _in_rows(tensor: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """The tensor's bytes, split into pieces. `counts`: the number of rows in each piece."""
    row = math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
    return list(_bytes(tensor).split([count * row for count in counts]))


def _rows(count: int, place: int, size: int) -> slice:
    """The rows that a member keeps. If `size` does not divide `count`, the first members keep one more."""
    each, rest = divmod(count, size)
    first = place * each + min(place, rest)
    return slice(first, first + each + (place < rest))


def _postscale(task: _Task) -> float:
    request = task.response.requests[0]
    divisor = len(task.members) if request.reduction is Reduction.AVERAGE else 1
    return request.postscale / divisor


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy `source` to `target`, unless both share their memory. Converts to the target's type."""
    if target.data_ptr() != source.data_ptr():
        torchs_own.copy_each(parts([target]), parts([source]))


def _is_small(task: _Task, like: torch.Tensor, rows: int) -> bool:
    """Whether so many rows like those of this tensor are exchanged as a sum."""
    of_all = task.response.requests[0].process_set == GLOBAL_SET and task.group is not None
    size = rows * math.prod(like.shape[1:]) * like.dtype.itemsize
    return of_all and task.device == _MEMORY and 0 < size <= MOST_SHARED_BYTES


def _gather_as_sum(
    sums: Sums, task: _Task, tensor: torch.Tensor, output: torch.Tensor, dimensions: Sequence[int]
) -> None:
    """Gather the rows of all ranks that took part; a rank that has died has none."""
    row = math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
    sharing = sums.share(sum(dimensions) * row, sum(dimensions[: task.place]) * row, _bytes(tensor))
    data, ranks = sharing.result()
    rows = data.split([count * row for count in dimensions])
    there = [each for rank, each in enumerate(rows) if rank in ranks]
    output.resize_(sum(count for rank, count in enumerate(dimensions) if rank in ranks), *tensor.shape[1:])
    _copy(_bytes(output), torch.cat(there))


def _reduce_as_sum(sums: Sums, task: _Task, tensor: torch.Tensor) -> None:
    """Reduce a small tensor over the ranks that take part, in the order of ranks."""
    own, count = _bytes(tensor), len(task.members)
    data, ranks = sums.share(count * own.numel(), task.place * own.numel(), own).result()
    rows = data.view(count, -1)[sorted(ranks)].view(tensor.dtype)
    reduce = _REDUCED_BY_TORCH[task.response.requests[0].reduction]
    tensor.copy_(reduce(rows, 0).view_as(tensor))


def _is_global_sum(task: _Task) -> bool:
    """Whether it is a sum or average over all ranks of tensors in memory."""
    request = task.response.requests[0]
    of_all = request.process_set == GLOBAL_SET and task.group is not None
    return of_all and request.reduction in (Reduction.SUM, Reduction.AVERAGE) and task.device == _MEMORY


def _exchange(task: _Task, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> list[Any]:
    """Send bytes to each member and receive bytes from each. The caller waits for the returned objects."""
    _copy(received[task.place], sent[task.place])
    if task.group is None:
        return []
    if task.device.type == "cuda":
        return [task.group.alltoall(list(received), list(sent))]
    size = len(task.members)
    pending = []
    for distance in range(1, size):
        source, target = (task.place - distance) % size, (task.place + distance) % size
        if received[source].numel():
            pending.append(task.group.recv([received[source]], source, EXCHANGE_TAG))
        if sent[target].numel():
            pending.append(task.group.send([sent[target]], target, EXCHANGE_TAG))
    return pending


def _in_memory(work: Work) -> Work:
    """The same work with copies of its tensors in memory."""
    work.submitted_on.synchronize()
    inputs = tuple(tensor.cpu() for tensor in work.inputs)
    outputs = tuple(torch.empty(output.shape, dtype=output.dtype) for output in work.outputs)
    return Work(work.request, inputs, outputs, work.received_splits)


def _out_of_memory(copy: Work, work: Work) -> None:
    """Copy the outputs from memory back to the GPU: from those of `copy` to those of `work`."""
    with torch.cuda.device(work.inputs[0].device):
        for target, source in zip(work.outputs, copy.outputs, strict=True):
            if target.shape != source.shape:
                target.resize_(source.shape)
            target.data.copy_(source)
        torch.cuda.current_stream().synchronize()
