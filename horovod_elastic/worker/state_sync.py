"""Workers take over another worker's state in few messages: rank 0's, or that of the giver by state_route.py.

A change's pause is at best one broadcast of the model. Horovod broadcasts model, optimizer, its options,
samplers and attributes one after the other, each small tensor by itself. It lets an optimizer without state
step once with zero gradients, so that the optimizer has a state. That moves the weights if there is weight
decay. Here, a worker with the state sends the structure of everything (pickled, with a slot in the place of
each tensor). Then it sends the small tensors in one message, and each large tensor in its own message.

Models and optimizers keep their tensors if the received tensors fit. The values are written into the tensors,
so that views of them and Horovod's hooks stay valid. In a broadcast, no worker skips that because it has the
same values already: running means of batch normalisation, for example, differ from rank to rank.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
from horovod.common.elastic import ObjectState, State
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import mpi_ops
from horovod.torch.elastic import state as horovods

from horovod_elastic.core.interface import TensorTransport
from horovod_elastic.worker.state_parts import (
    StatePart,
    is_plain,
    orders_of,
    parts_of,
    settle,
    small,
    synced_by_horovod,
)

ROOT = 0
FIRST_BYTES = 64 * 1024
"""The length of the first message, whatever it holds, so that no receiver has to be told the length."""
LARGE_BYTES = 256 * 1024
"""Tensors of this size or more get their own messages, if possible without a copy; others are collected."""
COLLECTED_BYTES = 32 * 2**20
"""The size at which a message of collected tensors is full."""
PIECE_BYTES = 32 * 2**20
"""The size of the pieces in which a TensorTransport carries a message."""
COPIED_BYTES = 4 * COLLECTED_BYTES
"""The limit of memory for copies of tensors on their way. Only a single large copy may exceed it."""
ALIGNMENT = 64
_SIZE_BYTES = 8


def broadcast(state: State) -> None:
    """Do what `state.sync()` does, by all workers at the same time. A state with its own sync uses that."""
    if not synced_by_horovod(state):
        state.sync()
        return
    parts = parts_of(state)
    _broadcast(parts)
    settle(state, parts)


def can_hand_over(state: State) -> bool:
    """Whether `hand_over` knows the parts of the state. Other states have a sync of their own."""
    return synced_by_horovod(state)


@dataclass(frozen=True, slots=True)
class Shared:
    """Rank 0's samplers and attributes, which take effect once `hand_over` is called."""

    parts: Sequence[StatePart]
    small: Sequence[StatePart]
    """The parts that are shared: samplers and attributes."""
    theirs: Sequence[Any] | None
    """The content of the shared parts that rank 0 has sent; None on rank 0."""


def share(state: State) -> Shared:
    """Send rank 0's samplers and attributes, which are small and may differ, to all ranks.

    All workers call it at the same time. The state does not change yet: if a worker is lost meanwhile, all go
    back to the state that they have saved. Raises HorovodInternalError if a peer is gone.
    """
    parts = parts_of(state)
    few = small(parts)
    return Shared(parts, few, _from_root_to_all(few, in_place=False))


def hand_over(
    state: State, shared: Shared, transport: TensorTransport, *, source: int | None, receivers: Sequence[int]
) -> None:
    """Send models and optimizers from workers that have them to workers that do not.

    All workers call it at the same time. `source`: the rank that gives them to this rank; None if this rank
    has them. `receivers`: the ranks to which this rank gives them. Raises HorovodInternalError if a peer is
    gone.
    """
    if shared.theirs is not None:
        _take_over(shared.small, shared.theirs)
    rest: list[StatePart] = [part for part in shared.parts if part not in shared.small]
    rest.append(orders_of(state))
    if source is not None:
        _receive(rest, functools.partial(_from, transport, source))
    elif receivers:
        _send(rest, functools.partial(_to, transport, receivers))
    settle(state, shared.parts)


def carry_on(state: State) -> None:
    """Go on without `broadcast` if workers have left and none is new: all have the same state already.

    Horovod does so, too. Samplers divide the rest of the epoch among the remaining workers, which Horovod's
    samplers forget.
    """
    if not synced_by_horovod(state):
        state.sync()
        return
    settle(state, parts_of(state))


def save_after_carry_on(state: State) -> None:
    """Save the changes of `carry_on` and reset callbacks, but not the tensors, which the boundary has saved.

    Workers that had the tensors before call it after `hand_over`, too.
    """
    if not synced_by_horovod(state) or type(state).save is not horovods.TorchState.save:
        state.save()
        return
    for handler in state._handlers.values():
        save = type(handler).save
        if save is horovods.OptimizerStateHandler.save:  # learning rates and the like
            groups = handler.value.state_dict()["param_groups"]
            handler._saved_optimizer_state["param_groups"] = copy.deepcopy(groups)
        elif save is not horovods.ModelStateHandler.save:
            handler.save()
    ObjectState.save(state)


def keep_saved_apart(state: State) -> None:
    """Copy saved optimizer states after `state.restore()`: an optimizer writes to tensors that it loads."""
    for handler in getattr(state, "_handlers", {}).values():
        if type(handler).restore is horovods.OptimizerStateHandler.restore:
            handler._saved_optimizer_state = copy.deepcopy(handler._saved_optimizer_state)


# --- how messages travel ----------------------------------------------------------------------------------

_Carry = Callable[[torch.Tensor, str], Callable[[], object]]
"""A function that begins to send or to receive a message (flat, uint8) of that name. The function that it
returns waits for the end."""


def _broadcast(parts: Sequence[StatePart]) -> None:
    theirs = _from_root_to_all(parts, in_place=True)
    if theirs is not None:
        _take_over(parts, theirs)


def _from_root_to_all(parts: Sequence[StatePart], *, in_place: bool) -> Sequence[Any] | None:
    """Send rank 0's content of these parts to all, `in_place` where it fits. Returns it; None on rank 0."""
    if mpi_ops.rank() != ROOT:
        return _received([part.room() if in_place else None for part in parts], _from_root)
    if mpi_ops.size() > 1:
        _send(parts, _from_root)
    return None


def _from_root(message: torch.Tensor, name: str) -> Callable[[], object]:
    return functools.partial(mpi_ops.synchronize, mpi_ops.broadcast_async_(message, ROOT, name=name))


def _to(
    transport: TensorTransport, receivers: Sequence[int], message: torch.Tensor, name: str
) -> Callable[[], object]:
    return _with_peers(transport.send, message, receivers)


def _from(transport: TensorTransport, source: int, message: torch.Tensor, name: str) -> Callable[[], object]:
    return _with_peers(transport.receive, message, [source])


def _with_peers(
    carry: Callable[[torch.Tensor, int], Callable[[], object]], message: torch.Tensor, ranks: Sequence[int]
) -> Callable[[], None]:
    """Begin to carry the message, in pieces. The returned function waits for all, then raises a failure."""
    begun: list[Callable[[], object]] = []
    failures: list[RuntimeError] = []
    try:
        for piece in _pieces(message):
            for rank in ranks:
                begun.append(carry(piece, rank))
    except RuntimeError as error:
        failures.append(error)

    def wait() -> None:
        for each in begun:
            try:
                each()
            except RuntimeError as error:
                failures.append(error)
        if failures:  # as Horovod's layer does it with collectives
            raise HorovodInternalError(failures[0]) from failures[0]

    return wait


def _pieces(message: torch.Tensor) -> Sequence[torch.Tensor]:
    return message.split(PIECE_BYTES) if message.numel() else ()


# --- the messages -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slot:
    """A stand-in for a tensor: the place of the tensor's bytes, their type and their shape."""

    message: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def within(self, message: torch.Tensor) -> torch.Tensor:
        """The slot's tensor in its message (flat, uint8)."""
        size = math.prod(self.shape) * self.dtype.itemsize
        return message[self.offset : self.offset + size].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of `size` bytes, from GPU to GPU or from memory to memory."""

    size: int
    on_gpu: bool = False

    def empty(self) -> torch.Tensor:
        return torch.empty(self.size, dtype=torch.uint8, device="cuda" if self.on_gpu else "cpu")


_Placed = list[tuple[_Slot, torch.Tensor]]


class _Packing:
    """Finds the tensors of a state, and gives each tensor a slot: large tensors in messages of their own."""

    def __init__(self) -> None:
        self.messages: list[_Message] = []
        self.placed: _Placed = []
        self._shared: dict[tuple[Any, ...], _Slot] = {}
        self._collecting = -1
        """The number of the message that collects small tensors; -1: there is none yet."""

    def replace(self, value: Any) -> Any:
        """A copy of `value` with slots in the place of tensors. `value` itself stays as it is."""
        if isinstance(value, dict):
            return _alike(value, {key: self.replace(each) for key, each in value.items()})
        if type(value) in (list, tuple):
            return type(value)(self.replace(each) for each in value)
        return self._slot(value) if is_plain(value) else value

    def _slot(self, tensor: torch.Tensor) -> _Slot:
        view = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and view in self._shared:
            return self._shared[view]
        slot = self._shared[view] = self._place(tensor, tensor.numel() * tensor.dtype.itemsize)
        self.placed.append((slot, tensor))
        return slot

    def _place(self, tensor: torch.Tensor, size: int) -> _Slot:
        shape = tuple(tensor.shape)
        if size >= LARGE_BYTES:
            self.messages.append(_Message(size, on_gpu=tensor.is_cuda and bool(mpi_ops.nccl_built())))
            return _Slot(len(self.messages) - 1, 0, tensor.dtype, shape)
        if self._collecting < 0 or self.messages[self._collecting].size >= COLLECTED_BYTES:
            self._collecting = len(self.messages)
            self.messages.append(_Message(0))
        offset = self.messages[self._collecting].size
        self.messages[self._collecting] = _Message(offset + -(-size // ALIGNMENT) * ALIGNMENT)
        return _Slot(self._collecting, offset, tensor.dtype, shape)


class _Unpacking:
    """Puts tensors in the place of slots: this worker's own tensors if they fit, else new tensors."""

    def __init__(self, messages: list[_Message]) -> None:
        self.placed: _Placed = []
        self._messages = messages

    def replace(self, theirs: Any, own: Any) -> Any:
        """The giver's state, with this worker's `own` tensors where they fit."""
        if isinstance(theirs, _Slot):
            return self._tensor(theirs, own)
        if isinstance(theirs, dict):
            known = own if isinstance(own, dict) else {}
            return _alike(theirs, {key: self.replace(each, known.get(key)) for key, each in theirs.items()})
        if type(theirs) in (list, tuple):
            alike = type(own) is type(theirs) and len(own) == len(theirs)
            each_own = own if alike else [None] * len(theirs)
            return type(theirs)(map(self.replace, theirs, each_own))
        return theirs

    def _tensor(self, slot: _Slot, own: Any) -> torch.Tensor:
        if is_plain(own) and own.dtype == slot.dtype and tuple(own.shape) == slot.shape:
            tensor: torch.Tensor = own
        else:
            device = "cuda" if self._messages[slot.message].on_gpu else "cpu"
            tensor = torch.empty(slot.shape, dtype=slot.dtype, device=device)
        self.placed.append((slot, tensor))
        return tensor


def _alike(model: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """A dictionary of the class of `model` with these items: a Counter stays a Counter."""
    if type(model) in (dict, OrderedDict):
        return items
    made = copy.copy(model)
    dict.update(made, items)  # Counter's own update would add the numbers up
    return made


def _send(parts: Iterable[StatePart], carry: _Carry) -> None:
    packing = _Packing()
    replaced = [packing.replace(part.own()) for part in parts]
    _send_structure(cloudpickle.dumps((packing.messages, replaced)), carry)
    under_way = _UnderWay()
    for number, (message, placed) in enumerate(_by_message(packing.messages, packing.placed)):
        buffer, copied = _memory_of(placed, message), 0
        if buffer is None:
            buffer, copied = message.empty(), message.size
            for slot, tensor in placed:
                slot.within(buffer).copy_(tensor)
        under_way.add(copied, carry(buffer, f"flexo.state.{number}"))
    under_way.finish()


def _receive(parts: Sequence[StatePart], carry: _Carry) -> None:
    _take_over(parts, _received([part.room() for part in parts], carry))


def _take_over(parts: Sequence[StatePart], theirs: Sequence[Any]) -> None:
    for part, each in zip(parts, theirs, strict=True):
        part.take_over(each)


def _received(rooms: Sequence[Any], carry: _Carry) -> list[Any]:
    """The giver's content of the parts, in these rooms where it fits. No part takes it over here."""
    messages, replaced = cloudpickle.loads(_receive_structure(carry))
    unpacking = _Unpacking(messages)
    theirs = [unpacking.replace(each, room) for each, room in zip(replaced, rooms, strict=True)]
    under_way = _UnderWay()
    for number, (message, placed) in enumerate(_by_message(messages, unpacking.placed)):
        buffer, copied, missing = _memory_of(placed, message), 0, placed[1:]
        if buffer is None:
            buffer, copied, missing = message.empty(), message.size, placed
        wait = carry(buffer, f"flexo.state.{number}")
        under_way.add(copied, functools.partial(_unpack, wait, buffer, missing))
    under_way.finish()
    return theirs


def _unpack(wait: Callable[[], object], buffer: torch.Tensor, placed: _Placed) -> None:
    wait()
    for slot, tensor in placed:
        tensor.copy_(slot.within(buffer))


class _UnderWay:
    """Messages that were begun. If copies take too much memory, the oldest message is finished first."""

    def __init__(self) -> None:
        self._begun: deque[tuple[int, Callable[[], object]]] = deque()
        self._copied = 0

    def add(self, copied: int, finish: Callable[[], object]) -> None:
        """Add a message with a copy of this number of bytes."""
        self._begun.append((copied, finish))
        self._copied += copied
        while self._copied > COPIED_BYTES:
            self._finish_oldest()

    def finish(self) -> None:
        """Finish all messages."""
        while self._begun:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        copied, finish = self._begun.popleft()
        try:
            finish()
        except HorovodInternalError:
            self._end_all()
            raise
        self._copied -= copied

    def _end_all(self) -> None:
        """Wait for all messages, so that nothing is written into tensors that are restored afterwards."""
        for _, finish in self._begun:
            with contextlib.suppress(HorovodInternalError):
                finish()


def _send_structure(pickled: bytes, carry: _Carry) -> None:
    first = torch.zeros(FIRST_BYTES, dtype=torch.uint8)
    there = torch.frombuffer(bytearray(struct.pack("<q", len(pickled)) + pickled), dtype=torch.uint8)
    first[: len(there)] = there[:FIRST_BYTES]
    carry(first, "flexo.state.first")()
    if len(there) > FIRST_BYTES:
        carry(there[FIRST_BYTES:].clone(), "flexo.state.more")()


def _receive_structure(carry: _Carry) -> bytes:
    first = torch.empty(FIRST_BYTES, dtype=torch.uint8)
    carry(first, "flexo.state.first")()
    received: bytes = first.numpy().tobytes()
    (size,) = struct.unpack_from("<q", received)
    missing = size - (FIRST_BYTES - _SIZE_BYTES)
    if missing > 0:
        more = torch.empty(missing, dtype=torch.uint8)
        carry(more, "flexo.state.more")()
        received += more.numpy().tobytes()
    return received[_SIZE_BYTES : _SIZE_BYTES + size]


def _by_message(messages: list[_Message], placed: _Placed) -> list[tuple[_Message, _Placed]]:
    slots: list[_Placed] = [[] for _ in messages]
    for slot, tensor in placed:
        slots[slot.message].append((slot, tensor))
    return list(zip(messages, slots, strict=True))


def _memory_of(placed: _Placed, message: _Message) -> torch.Tensor | None:
    """The first tensor's own memory, flat, if that is the whole message; else None."""
    tensor = placed[0][1].detach()
    if (
        tensor.numel() * tensor.dtype.itemsize != message.size
        or tensor.is_cuda != message.on_gpu
        or not tensor.is_contiguous()
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return None
    return tensor.view(-1).view(torch.uint8)
