"""Carries parts of a state from one worker to others in few messages: the structure, then the tensors.

A worker with the state sends the structure of everything (pickled, with a slot in the place of each tensor).
Then it sends the small tensors in one message, and each large tensor in its own message. A receiver writes
values into its own tensors where they fit, so that views of them stay valid.
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
from typing import Any, Protocol

import cloudpickle  # type: ignore[import-untyped]
import torch

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

Carry = Callable[[torch.Tensor, str], Callable[[], object]]
"""A function that begins to send or to receive a message (flat, uint8) of that name. The function that it
returns waits for the end."""


class StatePart(Protocol):
    """A unit that is given and taken over separately: a model, an optimizer, a sampler, the attributes."""

    def own(self) -> Any:
        """The part's state: tensors and objects that can be pickled, in dictionaries, lists and tuples."""

    def room(self) -> Any:
        """The memory, in the structure of `own`, into which a giver's tensors are received where they fit.

        By default there is none: tensors are received into new memory.
        """
        return None

    def take_over(self, theirs: Any) -> None:
        """Take over the giver's state. Tensors of `room` that fitted are in it, with the giver's values."""

    def settle(self) -> None:
        """Do the work that follows on all ranks, also on the giver; by default there is none."""
        return None


def is_plain(value: Any) -> bool:
    """Whether the value is a tensor of plain bytes. Sparse, quantised and other ones are pickled whole."""
    return bool(
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


def with_peers(
    carry: Callable[[torch.Tensor, int], Callable[[], object]], message: torch.Tensor, ranks: Sequence[int]
) -> Callable[[], None]:
    """Begin to carry the message, in pieces. The returned function waits for all, then raises a failure.

    A failure is the RuntimeError of a TensorTransport.
    """
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
        if failures:
            raise failures[0]

    return wait


def _pieces(message: torch.Tensor) -> Sequence[torch.Tensor]:
    return message.split(PIECE_BYTES) if message.numel() else ()


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

    def __init__(self, from_gpus: bool) -> None:
        self._from_gpus = from_gpus
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
            self.messages.append(_Message(size, on_gpu=tensor.is_cuda and self._from_gpus))
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


def send(parts: Iterable[StatePart], carry: Carry, *, from_gpus: bool) -> None:
    """Send the parts. `from_gpus`: whether messages may lie on GPUs.

    Raises the errors of `carry`, RuntimeErrors.
    """
    packing = _Packing(from_gpus)
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


def receive(parts: Sequence[StatePart], carry: Carry) -> None:
    """Receive what `send` sends, and take it over."""
    take_over(parts, received([part.room() for part in parts], carry))


def take_over(parts: Sequence[StatePart], theirs: Sequence[Any]) -> None:
    """Have the parts take over a giver's contents."""
    for part, each in zip(parts, theirs, strict=True):
        part.take_over(each)


def received(rooms: Sequence[Any], carry: Carry) -> list[Any]:
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
        except RuntimeError:
            self._end_all()
            raise
        self._copied -= copied

    def _end_all(self) -> None:
        """Wait for all messages, so that nothing is written into tensors that are restored afterwards."""
        for _, finish in self._begun:
            with contextlib.suppress(RuntimeError):
                finish()


def _send_structure(pickled: bytes, carry: Carry) -> None:
    first = torch.zeros(FIRST_BYTES, dtype=torch.uint8)
    there = torch.frombuffer(bytearray(struct.pack("<q", len(pickled)) + pickled), dtype=torch.uint8)
    first[: len(there)] = there[:FIRST_BYTES]
    carry(first, "flexo.state.first")()
    if len(there) > FIRST_BYTES:
        carry(there[FIRST_BYTES:].clone(), "flexo.state.more")()


def _receive_structure(carry: Carry) -> bytes:
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
