"""`flexo.elastic(...)`: what a script of torch.distributed says to flexo because flexo cannot infer it.

A script declares state: objects with a state_dict, pairs of functions, and plain values. It may also have
flexo count its steps. Without flexo's launcher all of it works in one process and under torchrun, and nothing
is handed over. This module imports neither PyTorch nor gRPC.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch


class Stateful(Protocol):
    """An object that returns its state, and takes a state over in place."""

    def state_dict(self) -> Any:
        """The state: tensors and objects that can be pickled, in dictionaries, lists and tuples."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take a state over."""
        ...


Functions = tuple[Callable[[], Any], Callable[[Any], object]]
"""A function that returns a state and one that takes it over: (generator.get_state, generator.set_state)."""
Plain = bool | int | float | complex | str | bytes | list[Any] | tuple[Any, ...] | dict[Any, Any] | set[Any]
State: TypeAlias = "Stateful | Functions | Plain | torch.Tensor | None"
"""What `elastic` takes for a name."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set)
_ALLOWED = (
    "allowed: an object with state_dict() and load_state_dict(), a pair of functions (get, set), or a value"
    " of numbers, text, tensors and lists, tuples, sets and dictionaries of them"
)


@dataclass(frozen=True, slots=True)
class Declared:
    """A unit of the declared state.

    `value`: the object that holds it; None for values and pairs. `goes_back`: whether what changes in a step
    without effect has to be undone.
    """

    name: str
    own: Callable[[], Any]
    take_over: Callable[[Any], object]
    value: Stateful | None = None
    goes_back: bool = True


class Runtime(Protocol):
    """The worker's side, in a process that flexo has started."""

    @property
    def weight(self) -> float:
        """See ElasticJob.weight."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether an optimizer has taken a step."""
        ...

    def counts_rounds(self) -> None:
        """Note that the script calls `next_round` at the beginning of each step."""
        ...

    def next_round(self) -> None:
        """Pass the beginning of a step: a place where workers may join and leave."""
        ...


class ElasticJob:
    """What `elastic` returns. Declared values are its attributes: `job.epoch += 1`."""

    _values: dict[str, Any]
    _declared: list[Declared]
    _steps: _Steps | None

    def __init__(self, state: dict[str, Any]) -> None:
        vars(self).update(_values={}, _declared=[], _steps=None)
        for name, value in state.items():
            self._declared.append(self._unit(name, value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._values:
            raise AttributeError(self._unknown(name))
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(self._unknown(name))
        if not _is_plain(value):
            raise TypeError(
                f"flexo: job.{name} = {_kind(value)}; allowed: what flexo.elastic({name}=...) allows"
            )
        self._values[name] = value

    def steps(self, stop: int | None = None, start: int = 0) -> Iterator[int]:
        """The numbers of the training's steps, from `start` to `stop` - 1; without an end if `stop` is None.

        Workers join and leave where the next number is asked for, if the training loop has no DataLoader.
        In a loop with a DataLoader they do so where the next batch is asked for. A worker that joins goes on
        with the others' number. Each step takes a step of an optimizer. Call it once, before the first step.
        """
        if self._steps is not None:
            raise RuntimeError("flexo: job.steps() was called before: a training has one loop of steps")
        if script.runtime is not None:
            _refuse_after_begin("job.steps()")
            script.runtime.counts_rounds()
        vars(self)["_steps"] = steps = _Steps(start, stop)
        number = Declared("job.steps()", lambda: steps.number, steps.go_on, goes_back=False)
        self._declared.append(number)
        return steps

    @property
    def weight(self) -> float:
        """The factor for this worker's gradients, so that their mean over workers is that over samples.

        It differs from 1.0 if workers have different numbers of samples in a step. flexo applies it to the
        gradients of models in DistributedDataParallel. Scripts that average gradients themselves apply it.
        """
        return 1.0 if script.runtime is None else script.runtime.weight

    def _unit(self, name: str, value: Any) -> Declared:
        if name.startswith("_") or hasattr(type(self), name):
            raise ValueError(f"flexo.elastic({name}=...): the name is taken; choose another one")
        if not isinstance(value, type) and _has(value, "state_dict") and _has(value, "load_state_dict"):
            return Declared(name, value.state_dict, value.load_state_dict, value)
        if isinstance(value, tuple) and len(value) == 2 and all(map(callable, value)):
            return Declared(name, *value)
        if not _is_plain(value):
            raise TypeError(f"flexo.elastic({name}=...) is {_kind(value)}; {_ALLOWED}")
        values = self._values
        values[name] = value
        return Declared(name, lambda: values[name], lambda theirs: values.update({name: theirs}))

    def _unknown(self, name: str) -> str:
        known = ", ".join(self._values) or "none"
        return f"flexo: job.{name} is no value that flexo.elastic() was given; known: {known}"


class _Steps:
    """The iterator that `ElasticJob.steps` returns."""

    def __init__(self, start: int, stop: int | None) -> None:
        self.number = start
        """The next one."""
        self._stop = stop
        self._open = False
        """Whether no optimizer has taken a step since the last number was given."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if script.runtime is not None:
            script.runtime.next_round()
        if self._stop is not None and self.number >= self._stop:
            raise StopIteration
        self.number += 1
        self._open = True
        return self.number - 1

    def __len__(self) -> int:
        if self._stop is None:
            raise TypeError("flexo: job.steps() without an end has no length")
        return max(0, self._stop - self.number)

    def go_on(self, number: int) -> None:
        """Go on with this number."""
        self.number = number

    def ends(self, *, counts: bool) -> None:
        """Note a step of an optimizer. If it does not count, the number is given again."""
        if self._open and not counts:
            self.number -= 1
        self._open = False


@dataclass(slots=True)
class _Script:
    """What this process's script has declared, and who is told."""

    job: ElasticJob | None = None
    runtime: Runtime | None = None
    """None outside of flexo."""


script = _Script()


def elastic(**state: State) -> ElasticJob:
    """Declare state that workers of an elastic job share, by names of your choice.

    All workers must have the same declared state after each step. A worker that joins takes it over from
    another one, and so does a worker that lacks a step after a failure. flexo finds optimizers, schedulers,
    gradient scalers and models in DistributedDataParallel itself; declaring them again does no harm. Call
    this function once, before the first step. Raises TypeError for a value that is no state, ValueError for a
    name that is taken, and RuntimeError at the wrong time.
    """
    if script.job is not None:
        raise RuntimeError("flexo.elastic() was called before: declare all state in one call")
    _refuse_after_begin("flexo.elastic()")
    script.job = ElasticJob(dict(state))
    return script.job


def _refuse_after_begin(what: str) -> None:
    if script.runtime is not None and script.runtime.has_begun:
        raise RuntimeError(
            f"{what} comes after the first step of an optimizer; call it before the training loop"
        )


def declared() -> tuple[Declared, ...]:
    """All declared state of this process, in the script's order."""
    return () if script.job is None else tuple(script.job._declared)


def step_ends(*, counts: bool) -> None:
    """Tell job.steps() that an optimizer has taken a step, which counts or has no effect."""
    if script.job is not None and script.job._steps is not None:
        script.job._steps.ends(counts=counts)


def _has(value: Any, method: str) -> bool:
    return callable(getattr(value, method, None))


def _kind(value: Any) -> str:
    methods = [name for name in ("state_dict", "load_state_dict") if _has(value, name)]
    missing = f", with {methods[0]}() alone" if len(methods) == 1 else ""
    return f"an object of the class {type(value).__name__}{missing}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if type(value) in _CONTAINERS:
        inner = itertools.chain(value, value.values()) if isinstance(value, dict) else value
        return all(map(_is_plain, inner))
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
