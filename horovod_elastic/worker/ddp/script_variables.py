"""The variables of a script that change while it trains, such as step counters, handed over to newcomers.

All workers are at the same line when a newcomer joins. So the newcomer's functions have the same variables as
those of the others, with the values of its practice. Where the others' values have changed since training
began, the newcomer takes them over: numbers, text and containers of these, tensors in objects of the script's
own classes, and models that are in no DistributedDataParallel, such as an average that the script keeps
itself. Variables that have not changed, such as the rank or a device, stay the newcomer's own.
"""

from __future__ import annotations

import copy
import ctypes
import inspect
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.data import Dataset

from horovod_elastic.trace import say
from horovod_elastic.worker.ddp import own_generators, torchs_own
from horovod_elastic.worker.ddp.script_frames import is_of_script
from horovod_elastic.worker.state_messages import is_plain

Place = tuple[Any, ...]
"""A frame's number from the outermost, a variable's name, and the attributes and keys from there on."""

_PLAIN = (int, float, bool, str, bytes, type(None), complex)
_CONTAINERS = (list, tuple, dict, set, deque, OrderedDict)
MOST_ELEMENTS = 10_000
"""Larger containers are left alone: training data, most often."""
DEEPEST = 4
"""The attributes and keys on the way from a variable to a value, at most."""


class ScriptVariables:
    """The variables, as a part of the state.

    `covered`: the models that other parts hand over. `declared`: the objects that the script has declared.
    """

    def __init__(self, covered: Callable[[], list[Any]], declared: Callable[[], list[Any]] = list) -> None:
        self._covered = covered
        self._declared = declared
        self._before: dict[Place, Any] = {}
        self._known: list[str] = []
        """The functions that ran when training began: of others, no variables are handed over."""
        self._changing: set[Place] = set()
        self._takes = False
        self.whole = False
        """Whether tensors in variables, and generators of the script's own, are handed over, too: a newcomer
        takes the rank of the worker that hands over."""
        self.taken: dict[tuple[FrameType, str], Any] = {}
        """The values that variables of this worker have got."""

    def first_step(self) -> None:
        """Remember, if a rank's variables are handed over as a whole, what they were before the first step.

        A newcomer's practice may change variables that the others have not changed since training began.
        """
        if self.whole:
            self._before = {place: self._mark(value) for place, value in self._values(_frames())}

    def training_begins(self) -> None:
        """Remember the values that variables have now."""
        frames = _frames()
        if not self.whole:
            self._before = {place: self._mark(value) for place, value in self._values(frames)}
        self._known = [frame.f_code.co_name for frame in frames]

    def takes(self, takes: bool) -> None:
        """Whether this worker is new, and takes over what it receives."""
        self._takes = takes

    def own(self) -> Any:
        """See StatePart.own."""
        frames = _frames()
        names = [frame.f_code.co_name for frame in frames]
        known = [each for each in range(len(frames)) if self._known[each : each + 1] == [names[each]]]
        values = {place: value for place, value in self._values(frames) if place[0] in known}
        self._changing |= {
            place for place, value in values.items() if self._mark(value) != self._before.get(place, self)
        }
        sent = {place: value for place, value in values.items() if place in self._changing}
        return {"where": _where(frames), "values": {place: _state(each) for place, each in sent.items()}}

    def room(self) -> Any:
        """See StatePart.room. Workers that are not new receive into other memory, and drop it."""
        if not self._takes:
            return None
        return {"values": {place: _state(value) for place, value in self._values(_frames())}}

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        frames = _frames()
        if not self._takes:
            return
        if not _is_same_place(theirs["where"], here := _where(frames)):
            say(
                "this worker keeps its own values of the script's variables: it is at"
                f" {_text(here)}, and the worker with the state is at {_text(theirs['where'])}"
            )
            return
        values = dict(self._values(frames))
        for place, received in theirs["values"].items():
            own = values.get(place)
            if isinstance(own, torch.Tensor) and isinstance(received, torch.Tensor):
                received = received.to(own.device)
            if isinstance(own, torch.nn.Module):
                own.load_state_dict(received)
            elif own_generators.is_one(own):
                own_generators.set_state(own, received)
            elif len(place) > 2:
                _set_inner(frames, place, received)
            elif own is not received:
                _set_variable(frames[place[0]], place[1], received)
        self._changing = set(theirs["values"])
        variables = ((place, each) for place, each in theirs["values"].items() if len(place) == 2)
        self.taken = {(frames[number], name): each for (number, name), each in variables}
        self.training_begins()

    def settle(self) -> None:
        """See StatePart.settle."""

    def _values(self, frames: list[FrameType]) -> Iterator[tuple[Place, Any]]:
        """What can be handed over: plain values, tensors of objects, models that no other part has."""
        covered = {id(module) for model in self._covered() for module in model.modules()}
        for place, value in _all_values(frames, self._declared()):
            if isinstance(value, torch.nn.Module):
                if covered.isdisjoint(map(id, value.modules())):
                    yield place, value
            elif (
                is_plain_data(value) or self._is_of_rank(value) or (len(place) > 2 and _is_own_tensor(value))
            ):
                yield place, value

    def _is_of_rank(self, value: Any) -> bool:
        """Whether only a process that takes this rank over gets the value."""
        return self.whole and (own_generators.is_one(value) or _is_own_tensor(value))

    def _mark(self, value: Any) -> Any:
        """What differs if the value has changed. Memory of a tensor that is gone may be another one's now."""
        if self.whole and isinstance(value, torch.Tensor):
            return _Version(value, torchs_own.changes(value))
        return _mark(value)


def _mark(value: Any) -> Any:
    """What differs if the value has changed. PyTorch counts the changes of a tensor."""
    if isinstance(value, torch.nn.Module):
        return [_mark(tensor) for tensor in value.state_dict().values() if isinstance(tensor, torch.Tensor)]
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), torchs_own.changes(value)
    if own_generators.is_one(value):
        return object()  # it counts as changed
    return type(value), copy.deepcopy(value)


class _Version:
    """A tensor, kept, at one of its versions."""

    def __init__(self, tensor: torch.Tensor, number: int) -> None:
        self._tensor = tensor
        self._number = number

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Version) and self._tensor is other._tensor
        return same and self._number == getattr(other, "_number", -1)

    __hash__ = None  # type: ignore[assignment]


def _state(value: Any) -> Any:
    if own_generators.is_one(value):
        return own_generators.state(value)
    return dict(value.state_dict()) if isinstance(value, torch.nn.Module) else value


def _is_own_tensor(value: Any) -> bool:
    return is_plain(value) and not isinstance(value, torch.nn.Parameter) and not value.requires_grad


# --- frames -----------------------------------------------------------------------------------------------


def _frames() -> list[FrameType]:
    """The script's functions that run now, from the module to the innermost."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_of_script(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _where(frames: list[FrameType]) -> list[tuple[str, int]]:
    """The script's place: its functions and their lines."""
    return [(frame.f_code.co_name, frame.f_lineno) for frame in frames]


def forget_locals() -> None:
    """Drop what Python keeps of variables that were read: objects that the script drops are to go."""
    for frame in _frames():
        if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            frame.f_locals.clear()  # a copy, in a function


def _text(where: list[tuple[str, int]]) -> str:
    return " > ".join(f"{name}:{line}" for name, line in where)


def _is_same_place(theirs: list[tuple[str, int]], own: list[tuple[str, int]]) -> bool:
    """Whether two scripts are in the same functions, called from the same lines.

    The innermost may be at another call for a batch, such as one after `except StopIteration`.
    """
    return theirs[:-1] == own[:-1] and [name for name, _ in theirs] == [name for name, _ in own]


def _set_variable(frame: FrameType, name: str, value: Any) -> None:
    """Set a local variable of a function that runs."""
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):  # as debuggers do it; later releases write through f_locals (PEP 667)
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _set_inner(frames: list[FrameType], place: Place, value: Any) -> None:
    """Set an attribute or an element. Nothing happens if its owner is not there or takes none."""
    owner = frames[place[0]].f_locals.get(place[1])
    for step in place[2:-1]:
        owner = owner.get(step) if isinstance(owner, dict) else getattr(owner, str(step), None)
    if isinstance(owner, dict):
        owner[place[-1]] = value
    elif hasattr(owner, "__dict__"):
        vars(owner)[place[-1]] = value


# --- values -----------------------------------------------------------------------------------------------


def _all_values(frames: list[FrameType], known: list[Any]) -> Iterator[tuple[Place, Any]]:
    """All values that the frames' variables lead to; of the script's own objects, their attributes too.

    `known`: objects of whose attributes nothing is wanted.
    """
    seen = set(map(id, known))
    for number, frame in enumerate(frames):
        variables = frame.f_locals
        for name in sorted(variables):
            if not name.startswith("__"):
                yield from _within((number, name), variables[name], seen)


def _within(place: Place, value: Any, seen: set[int]) -> Iterator[tuple[Place, Any]]:
    yield place, value
    if id(value) in seen or len(place) > DEEPEST:
        return
    if type(value) is dict and len(value) <= MOST_ELEMENTS and not is_plain_data(value):
        inner = {key: each for key, each in value.items() if isinstance(key, str | int)}
    elif _is_object_of_script(value):
        inner = vars(value)
    else:
        return
    seen.add(id(value))
    for name in sorted(inner, key=str):
        yield from _within((*place, name), inner[name], seen)


def _is_object_of_script(value: Any) -> bool:
    if isinstance(value, torch.nn.Module | Dataset | type) or not hasattr(value, "__dict__"):
        return False
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    return file is not None and is_of_script(file)


def is_plain_data(value: Any, depth: int = 0) -> bool:
    """Whether the value is a number, text, or a container of these."""
    if isinstance(value, _PLAIN):
        return True
    if type(value) not in _CONTAINERS or len(value) > MOST_ELEMENTS or depth > DEEPEST:
        return False
    elements = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return all(is_plain_data(each, depth + 1) for each in elements)
