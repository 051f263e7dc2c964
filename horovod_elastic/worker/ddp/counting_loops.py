"""`range` and `enumerate` of a newcomer's script, which go on with the others' numbers once it has joined.

A newcomer's loop has counted its practice. Its variable gets the others' value (script_variables.py), but the
iterator of a `for` would go on counting from its own. So a newcomer's module gets iterators that can be set.
Only loops of the form `for NAME in range(...)` and `for NAME, ... in enumerate(...)` are concerned, with or
without tqdm around it, in modules that the script had imported when it called init_process_group or made a
DataLoader.
"""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from horovod_elastic.worker.ddp.script_frames import is_of_script

Taken = Mapping[tuple[FrameType, str], Any]
"""The values that variables have got, by frame and name."""
_REPLACED = "range", "enumerate"


class CountingLoops:
    """The loops of this process that count."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[_Counting] = weakref.WeakSet()
        self.practises = False
        """Whether this is a newcomer that has not joined yet."""
        self.others_are_beyond = False
        """Whether the others have left this newcomer's loop over epochs for a later one."""
        self._modules: list[dict[str, Any]] = []
        self._unhook: Callable[[], None] | None = None
        """Gives tqdm its own iterator back; None while that is not replaced."""

    def watch(self) -> None:
        """Replace the builtins in the script's modules, and hook tqdm."""
        self.practises = True
        for module in list(sys.modules.values()):
            space, file = getattr(module, "__dict__", {}), getattr(module, "__file__", None)
            watched = any(space is each for each in self._modules)
            if isinstance(file, str) and is_of_script(file) and not watched:
                self._modules.append(space)
                for name in _REPLACED:
                    space.setdefault(name, getattr(self, f"_{name}"))
        if self._unhook is None and (package := sys.modules.get("tqdm.std")):
            self._watch_bars(package.tqdm)

    def _watch_bars(self, bars: Any) -> None:
        """Hook tqdm's class, which is around a range or an enumerate before its own `for` begins."""
        begin = bars.__iter__

        @functools.wraps(begin)
        def iterate(bar: Any) -> Any:
            bar.iterable = self._within_bar(bar.iterable, sys._getframe(1))
            return begin(bar)

        bars.__iter__ = iterate
        self._unhook = functools.partial(setattr, bars, "__iter__", begin)

    def _within_bar(self, iterable: Any, frame: FrameType) -> Any:
        name = _variable_of_for(frame)
        if name is not None and isinstance(iterable, builtins.range):
            return _CountingRange(self, iterable, frame, name)
        if name is not None and type(iterable) is builtins.enumerate:
            reduced: Any = iterable.__reduce__()
            inner, start = reduced[1]
            return _CountingEnumerate(self, inner, start, frame, name)
        return iterable

    def go_on(self, taken: Taken, given: int) -> None:
        """Have the loops go on from the values that variables have got; end the watch.

        `given`: the batches of the epoch that the others have had.
        """
        self.practises = False
        for loop in list(self._live):
            loop.go_on(taken, given)
        for space in self._modules:
            for name in _REPLACED:
                if space.get(name) == getattr(self, f"_{name}"):
                    del space[name]
        self._modules.clear()
        if self._unhook is not None:
            self._unhook()
            self._unhook = None

    def batch_loop_begins(self) -> None:
        """Note that an iteration over the training loader begins."""
        for loop in self._live:
            loop.iterations += 1

    def began(self, loop: _Counting) -> None:
        """Remember a loop while it runs."""
        self._live.add(loop)

    def _range(self, *args: Any) -> Any:
        whole = builtins.range(*args)
        if torch.compiler.is_compiling():
            return whole
        frame = sys._getframe(1)
        name = _variable_of_for(frame)
        return whole if name is None else _CountingRange(self, whole, frame, name)

    def _enumerate(self, iterable: Any, start: int = 0) -> Any:
        if torch.compiler.is_compiling() or isinstance(iterable, list | tuple | str | dict):
            return builtins.enumerate(iterable, start)
        frame = sys._getframe(1)
        return _CountingEnumerate(self, iterable, start, frame, _variable_of_for(frame) or "")


class _Counting:
    """A loop's iterator. `iterations`: over the training loader, that have begun since this loop began."""

    def __init__(self, loops: CountingLoops, frame: FrameType, name: str) -> None:
        self._loops = loops
        self._frame = frame
        self._name = name
        self.iterations = 0
        loops.began(self)

    def go_on(self, taken: Taken, given: int) -> None:
        raise NotImplementedError


class _CountingRange(_Counting):
    def __init__(self, loops: CountingLoops, whole: range, frame: FrameType, name: str) -> None:
        super().__init__(loops, frame, name)
        self._whole = whole
        self._index = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self._index >= len(self._whole) and not self._lasts():
            raise StopIteration
        self._index = min(self._index + 1, len(self._whole))
        return self._whole[self._index - 1]

    def _lasts(self) -> bool:
        """Whether a loop over epochs goes on in practice: a script that resumes has fewer than the others."""
        practises = self._loops.practises and not self._loops.others_are_beyond
        return practises and 0 < len(self._whole) <= self.iterations

    def __len__(self) -> int:
        return len(self._whole)

    def go_on(self, taken: Taken, given: int) -> None:
        value = taken.get((self._frame, self._name))
        if isinstance(value, int) and value in self._whole:
            self._index = self._whole.index(value) + 1


class _CountingEnumerate(_Counting):
    def __init__(self, loops: CountingLoops, iterable: Any, start: int, frame: FrameType, name: str) -> None:
        super().__init__(loops, frame, name)
        self._inner = iter(iterable)
        self._start = start
        self._number = start

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        item = next(self._inner)
        number = self._number
        self._number = number + 1
        return number, item

    def go_on(self, taken: Taken, given: int) -> None:
        value = taken.get((self._frame, self._name))
        if self.iterations <= 1:  # this loop began with the epoch
            self._number = self._start + given
        elif isinstance(value, int):
            self._number = value + 1


def _variable_of_for(frame: FrameType) -> str | None:
    """The variable of the `for` whose iterable `frame` calls or begins now, or None."""
    later = (step for step in dis.get_instructions(frame.f_code) if step.offset > frame.f_lasti)
    told = (step for step in later if step.opname not in ("CACHE", "EXTENDED_ARG"))
    names = list(itertools.islice(itertools.dropwhile(lambda step: step.opname == "GET_ITER", told), 3))
    if len(names) < 2 or names[0].opname != "FOR_ITER":
        return None
    stored = names[2] if names[1].opname == "UNPACK_SEQUENCE" and len(names) > 2 else names[1]
    return str(stored.argval) if stored.opname.startswith("STORE_") else None
