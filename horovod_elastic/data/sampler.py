"""ElasticShardSampler: indices only, for scripts that keep their own DataLoader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized

from horovod_elastic.data.elastic import Elastic
from horovod_elastic.data.order import Order, Shuffle
from horovod_elastic.data.share import Share


class ElasticShardSampler(Elastic):
    """A batch sampler for an ordinary DataLoader; every sample once an epoch, whoever comes and goes::

        sampler = ElasticShardSampler(dataset, batch_size=32, seed=1)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

        @hvd.elastic.run
        def train(state):
            while state.epoch < 90:
                for images, labels in loader:
                    ...
                    optimizer.step()
                    sampler.record_batch()
                    state.commit()
                state.epoch += 1
                sampler.set_epoch(state.epoch)

    DataLoader draws several mini-batches ahead, and what is drawn is not trained on. So the script says with
    `record_batch` that it has trained on one, and with `set_epoch` that an epoch is over, as with Horovod's
    own ElasticSampler. What was drawn and not recorded when workers change is drawn and read again:
    ElasticDataset, which keeps it, resumes faster.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: Shuffle = "samples",
        partitions: int | None = None,
        name: str = "data",
    ) -> None:
        """See ElasticDataset; of `dataset` only the length is asked."""
        samples = len(dataset)
        super().__init__(Share(name, samples, batch_size, seed, partitions, ahead=2, counts_itself=False))
        self._order = Order(samples, shuffle)
        self._weights: deque[float] = deque()
        self._recorded = False

    def __iter__(self) -> Iterator[list[int]]:
        """The mini-batches that are left of this epoch, as lists of indices."""
        share = self._share
        if share.allotment.untrained:
            share.reopen()
        self._weights.clear()
        while (batch := share.draw()) is not None:
            self._weights.append(batch.weight)
            yield self._order.indices(batch.ranges, share.allotment.whole.seed, self.epoch).tolist()

    @property
    def weight(self) -> float:
        """Of the mini-batch that was drawn first and is not recorded; see ElasticDataset."""
        return self._weights[0] if self._weights else 1.0

    def record_batch(self) -> None:
        """The script has trained on the next of the mini-batches that it got.

        Raises ValueError if there is none.
        """
        self._share.allotment.trained()
        self._weights.popleft()
        self._recorded = True

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; does nothing in the middle of it. To be called by all workers.

        Raises RuntimeError if nothing was recorded of an epoch that was drawn to its end.
        """
        if epoch != self.epoch:
            if self._share.allotment.is_over and self._share.allotment.untrained and not self._recorded:
                raise RuntimeError(
                    f"'{self.name}': epoch {self.epoch} was drawn to its end, and record_batch() never "
                    f"called. Call it after each mini-batch, so that it is known what has been trained on"
                )
            self._recorded = False
        super().set_epoch(epoch)
