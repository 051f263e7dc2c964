"""What belongs to one rank alone, in reproducible mode: it moves with the rank from process to process.

Examples are random numbers, batch statistics and the script's variables. All ranks are at the same boundary
when some of them move. While they are still connected, each process that gives its rank up gives this state
to one that stays, the holder. In the next generation, the holder gives it to the newcomer with that rank.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from horovod_elastic.core.interface import TensorTransport
from horovod_elastic.worker.ddp.elastic_group import ElasticGroup
from horovod_elastic.worker.state_messages import StatePart, with_peers


@dataclass(frozen=True, slots=True)
class _Kept:
    commits: int
    """The batches after which the state was given."""
    packed: torch.Tensor


class PrivateStates:
    """The states that this process keeps for ranks that move."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    def give_up_ranks(
        self, group: ElasticGroup, transport: TensorTransport, own: Sequence[StatePart] | None, commits: int
    ) -> None:
        """Give this process's state to a holder, or keep those of others. All ranks call it together.

        `own`: the parts of the state, if this process gives its rank up. Raises RuntimeError if a rank is
        gone.
        """
        self._kept.clear()
        packed = None if own is None else _packed(own)
        told = [size for (size,) in group.exchange([0 if packed is None else len(packed)])]
        staying = [rank for rank, size in enumerate(told) if not size]
        moving = [rank for rank, size in enumerate(told) if size]
        for number, mover in enumerate(moving if staying else []):
            holder = staying[number % len(staying)]
            if group.rank() == mover and packed is not None:
                with_peers(transport.send, packed, [holder])()
            elif group.rank() == holder:
                room = torch.empty(told[mover], dtype=torch.uint8)
                with_peers(transport.receive, room, [mover])()
                self._kept[mover] = _Kept(commits, room)

    def take_ranks_over(
        self, group: ElasticGroup, transport: TensorTransport, new: Sequence[int], commits: int, rank: int
    ) -> list[Any] | None:
        """Give the states that this process keeps to the ranks in `new`, or receive that of `rank`, its own.

        All ranks call it together. None: this rank is not new, or nobody has kept its state after this
        number of commits.
        """
        own = [self._kept.get(each) for each in new]
        sizes = [0 if each is None or each.commits != commits else len(each.packed) for each in own]
        told = group.exchange(sizes)
        for number, newcomer in enumerate(new):
            holder = next((each for each, theirs in enumerate(told) if theirs[number]), None)
            if holder is None:
                continue
            if rank == newcomer:
                room = torch.empty(told[holder][number], dtype=torch.uint8)
                with_peers(transport.receive, room, [holder])()
                return _unpacked(room)
            if rank == holder:
                with_peers(transport.send, self._kept[newcomer].packed, [newcomer])()
        return None


def _packed(parts: Sequence[StatePart]) -> torch.Tensor:
    file = io.BytesIO()
    torch.save([part.own() for part in parts], file, pickle_module=cloudpickle)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> list[Any]:
    file = io.BytesIO(packed.numpy().tobytes())
    unpacked: list[Any] = torch.load(file, map_location="cpu", weights_only=False)
    return unpacked
