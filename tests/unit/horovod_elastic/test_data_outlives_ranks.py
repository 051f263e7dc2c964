"""Ranks die in the middle of a mini-batch, and others go on without them: each sample counts once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

pytest.importorskip("torch")

from data_job import Broke, Job

from horovod_elastic.data.allotment import Batch


class OutlivingJob(Job):
    """A job whose ranks go on without those that die, until the next generation."""

    def __init__(self, samples: int, batch_size: int, workers: int, **how: object) -> None:
        self.dead: dict[int, bool] = {}
        """The ranks that have died in this generation, and whether that was before the last mini-batch."""
        super().__init__(samples, batch_size, workers, **how)  # type: ignore[arg-type]

    def train_and_die(self, dying: Sequence[int], trained: bool) -> bool:
        """One mini-batch, in which these ranks die: after they have contributed to it (`trained`), or before.

        False at the end of an epoch.
        """
        collective = self.workers[0].communicator._collective
        live = [rank for rank in range(len(self.workers)) if rank not in collective.gone]
        batches = self._draw_without(collective.gone)
        if not batches:
            self._check_epoch()
            for rank in live:
                self.workers[rank].share.go_to(self.state.epoch)
            return False
        for rank in dying:
            collective.gone.add(rank)
            self.leader.worker_gone(self.workers[rank].worker_id)
        self._train([batch for rank, batch in batches.items() if trained or rank not in dying])
        untrained = frozenset(self.dead) | (frozenset() if trained else frozenset(dying))
        self.dead.update(dict.fromkeys(dying, trained))
        for rank in live:
            session = self.workers[rank].session
            assert session is not None
            session.untrained = untrained
        return True

    def _draw_without(self, gone: set[int]) -> dict[int, Batch]:
        drawing = {rank: each.share.drawing() for rank, each in enumerate(self.workers) if rank not in gone}
        drawn: dict[int, Batch | None] = {}
        while drawing:
            for rank in list(drawing):
                gathering = self.workers[rank].share._gathering
                if gathering is not None and not gathering.done:
                    continue
                try:
                    next(drawing[rank])
                except StopIteration as end:
                    drawn[rank] = end.value
                    del drawing[rank]
            self.deliver()
        batches = {rank: batch for rank, batch in drawn.items() if batch is not None}
        assert len(batches) in (0, len(drawn)), "all ranks are at the same place"
        return batches

    def next_generation(self, join: int) -> None:
        """A planned change: those that live go on, perhaps with others."""
        gone = self.workers[0].communicator._collective.gone
        self.workers = [worker for rank, worker in enumerate(self.workers) if rank not in gone]
        self.dead.clear()
        self.resize(join=join)
        for worker in self.workers:
            assert worker.session is not None
            worker.session.untrained = frozenset()


Event = tuple[str, int, bool]
EVENTS = st.lists(
    st.tuples(st.sampled_from(["train", "die", "generation"]), st.integers(0, 3), st.booleans()), max_size=12
)


@settings(max_examples=examples(150), deadline=None)
@given(samples=st.integers(20, 150), batch=st.integers(1, 6), workers=st.integers(2, 4), events=EVENTS)
def test_each_sample_counts_once_an_epoch_whoever_dies(
    samples: int, batch: int, workers: int, events: list[Event]
) -> None:
    job = OutlivingJob(samples, batch, workers)
    for kind, number, trained in events:
        live = [rank for rank in range(1, len(job.workers)) if rank not in job.dead]
        if kind == "generation":
            job.next_generation(join=min(number, 4 - len(live)))
        elif kind == "die" and live:
            job.train_and_die([live[number % len(live)]], trained)
        else:
            job.train_and_die([], trained=True)
    for _ in range(2):  # the rest of this epoch, and another one
        while job.train_and_die([], trained=True):
            pass


@pytest.mark.parametrize("trained", [True, False])
def test_who_dies_in_an_epochs_last_mini_batch_leaves_nothing_out(trained: bool) -> None:
    job = OutlivingJob(samples=12, batch_size=2, workers=3)
    job.train_and_die([], trained=True)
    job.train_and_die([2], trained)
    more = job.train_and_die([], trained=True)
    assert more is not trained, "what it had not trained on comes once more"
    while job.train_and_die([], trained=True):
        pass


def test_where_mini_batches_are_drawn_ahead_all_go_back() -> None:
    job = OutlivingJob(samples=40, batch_size=2, workers=3, drawn_ahead=1)
    job.step()
    job.workers[0].communicator._collective.gone.add(2)
    with pytest.raises(Broke, match="rank 2 is gone"):
        job.workers[0].share._go_on_without([2])
