"""One rank's share of a dataset in a running job: it connects the allotment, the other ranks and the leader.

Everything here happens in the training thread. The script's interfaces are in dataset.py, sampler.py and
generator.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Sequence
from typing import Any

from horovod_elastic.data import communicator
from horovod_elastic.data.allotment import Allotment, Batch, Ledger, Ranges, Step, Whole
from horovod_elastic.data.communicator import Alone, Communicator, Gathering, Records
from horovod_elastic.data.shard_client import Session, ShardClient, find_session
from horovod_elastic.data.sizes import pace_of
from horovod_elastic.ranges import Range
from horovod_elastic.shards import default_partitions


class Wait(enum.Enum):
    """The reason why the next step may block. Tests run all ranks of a job in one thread and stop there."""

    FOR_RANKS = "for ranks"
    FOR_LEADER = "for leader"


Waits = Generator[Wait, None, None]


class ShardReader:
    """One rank's share of a dataset (see the module).

    `ahead`: the number of mini-batches that the script's side reads ahead. `counts_itself`: whether a
    mini-batch counts as trained on once it is handed out, so that the next commit covers it.
    """

    def __init__(
        self,
        name: str,
        samples: int,
        batch_size: int,
        seed: int,
        partitions: int | None,
        ahead: int,
        *,
        counts_itself: bool = True,
        find_communicator: Callable[[], Communicator] = communicator.present,
        session: Callable[[], Session | None] = find_session,
    ) -> None:
        partitions = default_partitions(samples) if partitions is None else partitions
        _check(name, samples, batch_size, seed, partitions)
        self.allotment = Allotment(Whole(name, samples, partitions, seed), batch_size)
        self.ahead = ahead
        self._counts_itself = counts_itself
        self._find_communicator = find_communicator
        self._find_session = session
        self._communicator: Communicator = Alone()
        self._client: ShardClient | None = None
        self._entered: tuple[int, int, int, int] | None = None
        """(generation, rank, size, states taken over) of the present opening."""
        self._loads = 0
        self._rank = 0
        self._members: tuple[int, ...] = (0,)
        """The ranks that share the dataset. This one is at the place `_rank`."""
        self._warmed_alone = False
        self._gathering: Gathering | None = None
        self._records: Records | None = None
        self._failure: Exception | None = None

    def draw(self) -> Batch | None:
        """The next mini-batch of this rank; None at the end of the epoch.

        Raises HorovodInternalError if the generation breaks, OutOfStep if the ranks are not at the same
        place.
        """
        drawing = self.drawing()
        while True:
            try:
                next(drawing)
            except StopIteration as end:
                batch: Batch | None = end.value
                return batch

    def drawing(self) -> Generator[Wait, None, Batch | None]:
        """Do the work of `draw` in pieces: the generator stops before everything that may block."""
        self._enter_if_changed()
        allotment = self.allotment
        self._settle()
        if allotment.is_over:
            return None
        step: Batch | Step = Step.AGAIN
        while step is Step.AGAIN:
            before = allotment.opening
            yield from self._exchange()
            records, self._records = self._records, None
            assert records is not None
            if lost := [rank for rank in self._members if rank not in records]:
                self._go_on_without(lost)
                continue
            step = allotment.resolve([records[rank] for rank in self._members])
            if allotment.opening is not before:
                self._open_client()
        if isinstance(step, Step):
            return None
        if self._counts_itself:
            allotment.trained()
        if not allotment.is_over:
            yield from self._announce()
        return step

    def reopen(self) -> None:
        """Take back mini-batches handed out and not trained on. All ranks do so at the same place."""
        self._finish_quietly()
        self._loads += 1

    def upcoming(self) -> list[Ranges]:
        """The samples of the next mini-batches, to be read ahead."""
        return self.allotment.upcoming(self.ahead)

    def go_to(self, epoch: int) -> None:
        """Go to the beginning of another epoch."""
        self._finish_quietly()
        self._records = None
        self.allotment.next_epoch(epoch)
        self._open_client()
        if self._client is not None and (wanted := self.allotment.wants(self._low_water())):
            self._client.ask(wanted)

    def save(self) -> None:
        """Commit the state. Afterwards no exchange of this dataset is under way between the ranks.

        The exchange that is finished here is about the next mini-batch. If it fails, the commit holds
        nevertheless, and the next draw fails.
        """
        self._settle()
        self._finish_quietly()
        self.allotment.commit()

    def restore(self) -> None:
        """Go back to the last commit, after the generation broke."""
        self._gathering, self._records, self._failure = None, None, None
        self.allotment.roll_back()
        self._loads += 1

    def state_dict(self) -> dict[str, Any]:
        """The state of the epoch, as numbers and lists of numbers."""
        ledger, whole = self.allotment.ledger(), self.allotment.whole
        return {
            "samples": whole.samples,
            "partitions": whole.partitions,
            "seed": whole.seed,
            "epoch": ledger.epoch,
            "opening": ledger.opening,
            "consumed": [number for each in ledger.consumed for number in each],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a result of `state_dict`, of any rank among any number of ranks.

        Also take over its seed and partitions. Raises ValueError if the dataset has another size.
        """
        whole = self.allotment.whole
        if state["samples"] != whole.samples:
            raise ValueError(
                f"'{whole.name}' has {whole.samples} samples; the state is of a dataset of {state['samples']}"
            )
        numbers = iter(state["consumed"])
        consumed = tuple(Range(start, length) for start, length in zip(numbers, numbers, strict=True))
        self._finish_quietly()
        self._records, self._failure = None, None
        self.allotment.load(Ledger(state["epoch"], state["opening"], consumed))
        self.allotment.whole = Whole(whole.name, whole.samples, state["partitions"], state["seed"])
        self._loads += 1

    def trained(self) -> None:
        """Count the oldest drawn mini-batch as trained on, now that it is."""
        self.allotment.trained()
        self._settle()

    # --- between the ranks ---

    def _settle(self) -> None:
        """Take back the samples of ranks that have died before they trained on them."""
        session = self._find_session()
        absent = frozenset() if session is None else session.absent()
        lost = [rank for rank in self._members if rank in absent]
        if lost and self.allotment.settle([self._members.index(rank) for rank in lost]):
            self._finish_quietly()
            self._records = None
            self._go_on_without(lost)
        else:
            self.allotment.settle(())

    def _go_on_without(self, lost: Sequence[int]) -> None:
        """Deal out anew what is left, among the ranks that live. All of them do so at the same place.

        Raises HorovodInternalError if mini-batches were handed out that count only when the script says so.
        """
        if not self._counts_itself:
            raise self._communicator.failure(f"rank {lost[0]} is gone, which has drawn mini-batches ahead")
        own = self._members[self._rank]
        self._members = tuple(rank for rank in self._members if rank not in lost)
        self._rank = self._members.index(own)
        keep = None if self._client is None else self._low_water()
        self.allotment.enter(self._rank, len(self._members), keep)

    def _enter_if_changed(self) -> None:
        session = self._find_session()
        warming = session is not None and session.warming
        self._communicator = Alone() if warming else self._find_communicator()
        rank, size = self._communicator.place()
        generation = 0 if session is None else session.generation
        entered = (generation, rank, size, self._loads)
        if entered == self._entered:
            return
        if self._warmed_alone:
            self.allotment.forget()
        if session is not None and self._client is None and not warming:
            self._client = ShardClient(session, self.allotment.whole)
        self.allotment.has_leader = self._client is not None
        keep = None if self._client is None else self._low_water()
        self.allotment.enter(rank, size, keep)
        self._gathering, self._records, self._failure = None, None, None
        self._entered, self._rank, self._warmed_alone = entered, rank, warming
        self._members = tuple(range(size))

    def _exchange(self) -> Waits:
        """Exchange records with all ranks, and leave the records of all ranks in `_records`."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._records is not None:
            return
        if self._gathering is None:
            yield from self._announce()
        yield Wait.FOR_RANKS
        assert self._gathering is not None
        gathering, self._gathering = self._gathering, None
        self._records = gathering.finish()

    def _announce(self) -> Waits:
        yield from self._get_supplies()
        session = self._find_session()
        self.allotment.pace = 0 if session is None else pace_of(session.speed)
        record = self.allotment.record()
        self._gathering = self._communicator.begin(self.allotment.whole.name, record)

    def _finish_quietly(self) -> None:
        if self._gathering is None:
            return
        gathering, self._gathering = self._gathering, None
        try:
            self._records = gathering.finish()
        except Exception as error:  # Horovod's own class, but Horovod need not be installed
            self._failure = error

    # --- with the leader ---

    def _low_water(self) -> int:
        """The number of samples to hold: mini-batches read ahead, and two more while the leader answers."""
        return (self.ahead + 2) * self.allotment.share

    def _open_client(self) -> None:
        allotment = self.allotment
        if self._client is not None and allotment.opening is not None:
            self._client.open(
                allotment.opening, allotment.whole, allotment.epoch, allotment.held, tell=self._rank == 0
            )

    def _get_supplies(self) -> Waits:
        """Ask the leader for samples in time. Wait for it only if the next mini-batch is not held in full."""
        client, allotment = self._client, self.allotment
        if client is None:
            return
        while True:
            for shards in client.answers():
                ranges = [Range(each.start, each.length) for each in shards.ranges]
                allotment.give(ranges, dry=shards.dry)
            if wanted := allotment.wants(self._low_water()):
                client.ask(wanted)
            if not allotment.is_short():
                return
            yield Wait.FOR_LEADER
            if not client.wait():
                allotment.give_up()


def _check(name: str, samples: int, batch_size: int, seed: int, partitions: int) -> None:
    if samples < 1:
        raise ValueError(f"'{name}' has {samples} samples; it needs at least one")
    check_batch_size(name, batch_size)
    if not 1 <= partitions <= samples:
        raise ValueError(
            f"'{name}': partitions is {partitions}; allowed: 1 to {samples}, the number of samples"
        )
    if not 0 <= seed < 2**63:
        raise ValueError(f"'{name}': seed is {seed}; allowed: 0 to 2**63 - 1")


def check_batch_size(name: str, batch_size: int) -> None:
    """Raise ValueError unless `batch_size` is positive."""
    if batch_size < 1:
        raise ValueError(f"'{name}': batch_size is {batch_size}; allowed: 1 or more")
