"""A check, every N boundaries, that all workers hold the same model. It tells the user of differences.

Each worker computes a number for every parameter, every tensor in the optimizers' states and every option in
their parameter groups, bit for bit. The numbers are folded into few, and one all-reduce of a few hundred
bytes a worker shows them to all workers. Where they differ, the numbers of that part are compared in the same
way, until one tensor is left. Nobody waits: an exchange is begun at one boundary and checked at later
boundaries.

Running statistics of batch normalization differ from worker to worker by design, and are left out unless a
SyncBatchNorm keeps them.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from horovod_elastic.trace import say
from horovod_elastic.worker.gradients import optimizers_of

if TYPE_CHECKING:
    import torch

    from horovod_elastic.worker.session import Session

VARIABLE = "FLEXO_CHECK_REPLICAS"
DEFAULT_EVERY = 1000
PARTS = 32
"""The number of numbers that a worker shows at once, each for a part of its values."""
_HEAD = 3
"""The number of numbers before those: whether the worker takes part, its optimizers' steps, its tensors."""
_TAKES_PART = 1
_CANNOT = 2
"""The value instead of _TAKES_PART if the worker has no numbers, because of an error.

The worker still takes part in the exchange, for which others wait."""
_ENDED = object()
_Result = TypeVar("_Result")


def every(text: str | None) -> int:
    """The number of boundaries from one check to the next, as the variable says; 0: no checks.

    Raises ValueError if `text` is no number.
    """
    if text is None or not text.strip():
        return DEFAULT_EVERY
    if not text.strip().isascii() or not text.strip().isdigit():
        raise ValueError(
            f"{VARIABLE} is '{text}'. A number of steps is allowed, such as {DEFAULT_EVERY}; 0: no checks"
        )
    return int(text)


class Checks:
    """The checks of one worker, one after the other."""

    def __init__(self, steps: int) -> None:
        """`steps`: the number of boundaries from one check to the next; 0: no checks."""
        self._every = steps
        self._under_way: Iterator[None] | None = None
        self._handle: int | None = None
        """The handle of an all-reduce that was begun."""
        self._given_up = False
        """Whether checks end for this generation. A worker that joins the next one would not know of it."""
        self.optimizer_steps = 0
        self._told: set[str] = set()
        self._told_what_is_left_out = False

    def begins(self) -> None:
        """Begin a generation. A comparison of the former generation is not continued."""
        self._under_way = self._handle = None
        self._given_up = False
        self.optimizer_steps = 0

    def at_boundary(self, session: Session, state: Any, *, last: bool) -> None:
        """Take a step of the checks at a boundary that counts. `last`: whether the generation ends here."""
        if last:
            self._settle()
            return
        if not self._every or self._given_up or session.size < 2:
            return
        if self._under_way is None and session.boundary % self._every == 0:
            self._under_way = self.compare(session, state)
        if self._under_way is not None and next(self._under_way, _ENDED) is _ENDED:
            self._under_way = None

    def _settle(self) -> None:
        """Finish the all-reduce that was begun: nothing may be outstanding when the communicator changes.

        All workers have begun the same all-reduces.
        """
        self._under_way = None
        if self._handle is not None:
            from horovod.torch import mpi_ops

            handle, self._handle = self._handle, None
            mpi_ops.synchronize(handle)

    def compare(self, session: Session, state: Any) -> Iterator[None]:
        """Make one check in pieces, one piece per boundary."""
        steps, boundary = self.optimizer_steps, session.boundary
        numbered = self._tried(session, lambda: self._begin(state))
        yield None
        names: Sequence[str] = () if numbered is None else numbered[0]
        fetched = None if numbered is None else self._tried(session, numbered[1])
        numbers: Sequence[int] = () if fetched is None else fetched
        takes_part = _CANNOT if fetched is None else _TAKES_PART
        while True:
            row = _row(steps, numbers, takes_part)
            table: list[list[int]] = yield from self.gather(session, row)
            present = {rank: each for rank, each in enumerate(table) if each[0]}
            if any(each[0] == _CANNOT for each in present.values()):
                self._given_up = True
                return
            if problem := _not_comparable(present, boundary):
                self._tell(problem)
                return
            part = next((i for i in range(_HEAD, len(row)) if len({r[i] for r in present.values()}) > 1), 0)
            if not part:
                return
            if len(names) == 1:
                self._tell(_differs(names[0], {rank: each[part] for rank, each in present.items()}, boundary))
                return
            names, numbers = _folded(names)[part - _HEAD], _folded(numbers)[part - _HEAD]

    def _begin(self, state: Any) -> tuple[list[str], Callable[[], list[int]]]:
        """The names of the compared values, and a function that fetches their numbers (0: cannot be read)."""
        named = list(replicated(state))
        unreadable: dict[int, Exception] = {}
        fetch = digests([value for _, value in named], unreadable.__setitem__)
        if unreadable and not self._told_what_is_left_out:
            self._told_what_is_left_out = True
            place, error = min(unreadable.items())
            self._tell(
                f"{len(unreadable)} of {len(named)} tensors and options are left out where replicas are"
                f" compared: {named[place][0]} cannot be read bit for bit ({_brief(error)})."
            )
        return [name for name, _ in named], fetch

    def _tried(self, session: Session, work: Callable[[], _Result]) -> _Result | None:
        """The result of `work`; None if it failed. Any rank tells the user so, not only the speaker."""
        try:
            return work()
        except Exception as failure:  # whatever a state holds: training goes on
            error = failure
        what = (
            f"rank {session.rank} cannot compare its replica with the others' ({_brief(error)}). This"
            " generation of workers makes no more such checks. Training goes on."
        )
        if what not in self._told:
            self._told.add(what)
            say(what)
        return None

    def gather(self, session: Session, row: list[int]) -> Any:
        """The rows of all workers, by rank; zeros for a worker that has joined (hvd.join).

        The exchange yields at each boundary until it is finished.
        """
        import torch
        from horovod.torch import mpi_ops

        table = torch.zeros(session.size, len(row), dtype=torch.int64)
        table[session.rank] = torch.tensor(row, dtype=torch.int64)
        self._handle = mpi_ops.allreduce_async(table, name="flexo.replicas", op=mpi_ops.Sum)
        yield None
        while not mpi_ops.poll(self._handle):
            yield None
        handle, self._handle = self._handle, None
        return mpi_ops.synchronize(handle).tolist()

    def _tell(self, what: str) -> None:
        if what and what not in self._told:
            self._told.add(what)
            if self.is_speaker():
                say(what)

    def is_speaker(self) -> bool:
        """Whether this rank tells the user of differences."""
        from horovod.torch import mpi_ops

        return bool(mpi_ops.rank() == 0)


def _row(steps: int, numbers: Sequence[int], takes_part: int = _TAKES_PART) -> list[int]:
    parts = [_combined(part) for part in _folded(numbers)]
    return [takes_part, steps, len(numbers), *parts, *[0] * (PARTS - len(parts))]


def _brief(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:120]}"


def _folded(values: Sequence[Any]) -> list[Sequence[Any]]:
    """The values in at most PARTS parts, in order."""
    length = max(1, -(-len(values) // PARTS))
    return [values[at : at + length] for at in range(0, len(values), length)]


def _combined(numbers: Sequence[int]) -> int:
    if len(numbers) == 1:
        return numbers[0]
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return zlib.crc32(packed) << 31 ^ zlib.adler32(packed)


def _not_comparable(present: dict[int, list[int]], boundary: int) -> str:
    steps = {rank: row[1] for rank, row in present.items()}
    if len(set(steps.values())) > 1:
        return (
            "workers stand at different steps of their optimizers at the same mini-batch boundary"
            f" ({_by_rank(steps)}). So their replicas cannot be compared, and a planned resize cannot find a"
            " step that all have ended. Call state.commit() or state.check_host_updates() after the same"
            " mini-batches on every worker."
        )
    tensors = {rank: row[2] for rank, row in present.items()}
    if len(set(tensors.values())) > 1:
        return (
            f"replicas differ at boundary {boundary}: workers hold different numbers of tensors in their"
            f" models and optimizers ({_by_rank(tensors)})."
        )
    return ""


def _differs(name: str, numbers: dict[int, int], boundary: int) -> str:
    """The message about a value that differs. Ranks that do not agree with most ranks are named first."""
    ((most, _), *_) = Counter(numbers.values()).most_common(1)
    others = [rank for rank, number in numbers.items() if number != most]
    alike = [rank for rank, number in numbers.items() if number == most]
    return (
        f"replicas differ: {name} is not the same on rank{_ranks(others)} as on rank{_ranks(alike)}, at"
        f" mini-batch boundary {boundary} of this generation. Training goes on, but its result is not what"
        f" one model would give. {VARIABLE}=0 ends these checks."
    )


def _ranks(ranks: Sequence[int]) -> str:
    return ("s " if len(ranks) > 1 else " ") + ", ".join(map(str, ranks))


def _by_rank(numbers: dict[int, int]) -> str:
    return ", ".join(f"rank {rank}: {number}" for rank, number in numbers.items())


# --- what is compared ---------------------------------------------------------------------------------------


def replicated(state: Any) -> Iterator[tuple[str, Any]]:
    """The values that must be equal on all workers. Options of optimizers come first: they cause the rest."""
    for name, optimizer in optimizers_of(state):
        for number, group in enumerate(optimizer.param_groups):
            for option, value in group.items():
                if isinstance(value, bool | int | float | str | tuple) or hasattr(value, "data_ptr"):
                    yield f"{name}.param_groups[{number}]['{option}']", value
    for name, handler in getattr(state, "_handlers", {}).items():
        if hasattr(handler.value, "named_parameters"):
            yield from _of_model(name, handler.value)
    for name, optimizer in optimizers_of(state):
        yield from _of_optimizer(name, optimizer)


def _of_model(name: str, model: Any) -> Iterator[tuple[str, Any]]:
    for inner, parameter in model.named_parameters():
        yield f"{name}.{inner}", parameter
    for path, module in model.named_modules():
        if any(kind.__name__ == "SyncBatchNorm" for kind in type(module).__mro__):
            for inner, buffer in module.named_buffers(recurse=False):
                yield ".".join(filter(None, (name, path, inner))), buffer


def _of_optimizer(name: str, optimizer: Any) -> Iterator[tuple[str, Any]]:
    called = getattr(optimizer, "_parameter_names", {})
    number = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                if hasattr(value, "data_ptr"):
                    yield f"{name}.state[{called.get(parameter, number)}]['{key}']", value
            number += 1


# --- numbers ------------------------------------------------------------------------------------------------


def digests(
    values: Sequence[Any], unreadable: Callable[[int, Exception], None] = lambda place, error: None
) -> Callable[[], list[int]]:
    """Begin to compute a number for each value, which depends on every bit of the value.

    The returned function waits for GPUs and returns the numbers. `unreadable`: called with the index of a
    value that has no such number, and the error; the value's number is 0. Examples are lazy parameters before
    the first batch, nested tensors, and subclasses of tensors that do not allow it.
    """
    import torch

    numbers: list[int] = [0] * len(values)
    on_device: dict[Any, list[tuple[int, torch.Tensor]]] = {}
    with torch.no_grad():
        for place, value in enumerate(values):
            try:
                if not isinstance(value, torch.Tensor):
                    numbers[place] = zlib.crc32(repr(value).encode())
                elif (digest := _digest(value)) is not None:
                    on_device.setdefault(digest.device, []).append((place, digest))
            except Exception as error:  # whatever its class raises
                unreadable(place, error)
        fetched = [(placed, _fetch([digest for _, digest in placed])) for placed in on_device.values()]

    def fetch() -> list[int]:
        for placed, result in fetched:
            for (place, _), number in zip(placed, result(), strict=True):
                numbers[place] = number
        return numbers

    return fetch


def _digest(value: torch.Tensor) -> torch.Tensor | None:
    """The sum of the tensor's bits, as integers of 64 bits as far as they reach; on the tensor's device.

    Raises whatever the tensor's class raises, and TypeError if the sum is no plain tensor.
    """
    import torch

    digest = _sum_of_bits(value)
    if digest is not None and type(digest) is not torch.Tensor:
        raise TypeError(f"its bits are summed up to a {type(digest).__name__}")
    return digest


def _sum_of_bits(value: torch.Tensor) -> torch.Tensor | None:
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_meta or not value.numel():
        return None
    flat = value.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    size = flat.itemsize
    if flat.storage_offset() * size % 8:
        flat = flat.clone()
    if len(flat) * size % 8 == 0:
        return flat.view(torch.int64).sum()
    octets = flat.view(torch.uint8)
    whole = len(octets) // 8 * 8
    rest = octets[whole:].sum()
    return octets[:whole].view(torch.int64).sum() + rest if whole else rest


def _fetch(found: Sequence[torch.Tensor]) -> Callable[[], list[int]]:
    """Copy the tensors to this process's memory, without waiting for later work of the GPU."""
    import torch

    there = torch.stack(list(found))
    if not there.is_cuda:
        return lambda: there.tolist()
    here = torch.empty(len(found), dtype=torch.int64, pin_memory=True)
    here.copy_(there, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def fetch() -> list[int]:
        done.synchronize()
        return here.tolist()  # type: ignore[no-any-return]

    return fetch


# --- in this process ----------------------------------------------------------------------------------------

_checks = Checks(0)


def attach(state: Any) -> None:
    """Set up the checks, just before the training function is entered.

    Raises SystemExit if the variable is no number.
    """
    global _checks
    try:
        _checks = checks = Checks(every(os.environ.get(VARIABLE)))
    except ValueError as error:
        sys.exit(f"flexo: {error}")

    def count(*_: Any) -> None:
        checks.optimizer_steps += 1

    for _, optimizer in optimizers_of(state):
        if hasattr(optimizer, "register_step_post_hook"):
            optimizer.register_step_post_hook(count)


def begins() -> None:
    """See Checks.begins."""
    _checks.begins()


def at_boundary(session: Session, state: Any, *, last: bool) -> None:
    """See Checks.at_boundary."""
    _checks.at_boundary(session, state, last=last)
