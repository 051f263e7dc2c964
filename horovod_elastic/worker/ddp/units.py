"""Units of several workers, which come and go together: which ranks they have, and how they agree.

A unit is a block of consecutive ranks: one replica of the model, whose workers each have a part of it (one
group of FSDP's shards, or of tensor parallelism). The workers of a unit stand on one node and live equally
long. So the groups inside a unit never change.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from horovod_elastic.core.c10d.groups import Groups
from horovod_elastic.trace import say
from horovod_elastic.worker.ddp import torchs_own
from horovod_elastic.worker.ddp.script_frames import caller

SIZE, NAME, PLACE = "FLEXO_UNIT_SIZE", "FLEXO_UNIT", "FLEXO_UNIT_PLACE"
"""Variables that the agent sets: the workers of a unit, the name of this worker's, and its place there."""
ADDRESS = "127.0.0.1"
TIMEOUT_S = 1800.0
"""As long as PyTorch's own. The leader ends a unit that has lost a worker, and does not wait for this."""
END_S = 60.0
_AGREEMENT = 0
"""The number of the group with which a unit agrees; groups of the script have later ones."""


class Kind(enum.Enum):
    """How a group of ranks lies in a world of units."""

    INSIDE = enum.auto()
    """All of its ranks are in one unit."""
    ACROSS = enum.auto()
    """It has the rank in the same place of every unit."""
    OTHER = enum.auto()


def kind_of(ranks: Sequence[int], size: int, world: int) -> Kind:
    """The kind of a group of these ranks (ascending), if a unit has `size` workers and the job `world`."""
    if list(ranks) == list(range(ranks[0], world, size)) and ranks[0] < size:
        return Kind.ACROSS
    if ranks[0] // size == ranks[-1] // size:
        return Kind.INSIDE
    return Kind.OTHER


def sets_across(world: int, size: int) -> list[list[int]]:
    """For each place in a unit, the ranks in this place."""
    return [list(range(place, world, size)) for place in range(size)] if size > 1 else []


class Unit:
    """The unit of this process. Made once, by all of its workers at the same time; it blocks until all have.

    `place`: this worker's place among the unit's workers. `store`: shared by the workers of this unit alone.
    """

    def __init__(self, size: int, place: int, store: Any) -> None:
        self.size = size
        self.place = place
        self._groups = Groups(place, size, ADDRESS, store, TIMEOUT_S)
        self._groups.build(_AGREEMENT, tuple(range(size)))
        self._made = _AGREEMENT
        self._under_way: list[tuple[Any, Any]] = []

    def group(self, places: Sequence[int]) -> Any:
        """A process group of these of the unit's workers, this one among them; they make it together."""
        members = tuple(places)
        own = members.index(self.place)
        if len(members) == 1:
            return torchs_own.plain_group(0, 1, torchs_own.gloo_alone())
        self._made += 1
        self._groups.build(self._made, members)
        group = torchs_own.plain_group(own, len(members), self._groups.gloo(self._made))
        if torch.cuda.is_available() and dist.is_nccl_available():
            device = torch.device("cuda", torch.cuda.current_device())
            torchs_own.add_backend(group, "cuda", "nccl", self._groups.nccl(self._made, device))
        return group

    def any_has(self, failed: bool) -> bool:
        """Whether a worker of this unit says that it has `failed`. All of them get the same answer.

        They ask in the same places of the script. A worker that has failed knows the answer, and waits for
        nobody. Raises RuntimeError if a worker of the unit is gone.
        """
        work, everybodys = self._tell(failed)
        if failed:
            return True
        work.wait()
        self._under_way.clear()
        return any(bool(each) for each in everybodys)

    def lives(self) -> bool:
        """Whether the unit is whole, as far as is known. All of its workers ask when the script ends.

        Where one takes long to come there, the others wait END_S seconds.
        """
        work, _ = self._tell(False)
        deadline = time.monotonic() + END_S
        while not work.is_completed():
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        try:
            return bool(work.wait())
        except RuntimeError:
            return False

    def _tell(self, failed: bool) -> tuple[Any, list[torch.Tensor]]:
        own = torch.tensor([int(failed)])
        everybodys = [torch.zeros_like(own) for _ in range(self.size)]
        work = self._groups.gloo(_AGREEMENT).allgather([everybodys], [own])
        self._under_way.append((work, everybodys))  # Gloo may write there after the caller has gone on
        return work, everybodys


class UnevenSampler(Exception):
    """A sampler that divides the data neither by workers nor by units."""


def samples_alike(unit: Unit, rank: int, size: int, sampler: DistributedSampler[Any]) -> int:
    """The number of workers that have the same samples of a loader, which is being made with this sampler.

    `rank`, `size`: this worker's, among all. Raises UnevenSampler.
    """
    told = (sampler.num_replicas, sampler.rank)
    if told in ((size, rank), (size // unit.size, rank // unit.size)):
        return size // int(sampler.num_replicas)
    raise UnevenSampler(
        f"the sampler of the DataLoader at {caller()} has num_replicas={told[0]} and rank={told[1]}. With"
        f" --elastic-unit={unit.size} these are world_size and rank, or both divided by {unit.size}"
    )


def any_has(unit: Unit, failed: bool) -> bool:
    """See Unit.any_has. This worker ends if another one of the unit is gone."""
    try:
        return unit.any_has(failed)
    except RuntimeError:
        end_with_unit()


def end_with_unit() -> NoReturn:
    """End, because another worker of the unit is gone."""
    say("this worker ends: another worker of its unit is gone")
    os._exit(1)  # an exit in order would say that the script has ended


def meet() -> Unit | None:
    """This process's unit, once its other workers are there, too; None in a job without units."""
    if (size := int(os.environ.get(SIZE) or 1)) == 1:
        return None
    folder = Path(os.environ["FLEXO_AGENT"].removeprefix("unix:")).parent  # for this user only
    store = dist.FileStore(str(folder / f"unit-{os.environ[NAME]}"), size)
    return Unit(size, int(os.environ[PLACE]), dist.PrefixStore("unit", store))
