"""ElasticShardSampler: it hands out indices only, for scripts that keep their own DataLoader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized

from horovod_elastic.data.elastic import Elastic
from horovod_elastic.data.order import Order, Shuffle
from horovod_elastic.data.shard_reader import ShardReader


class ElasticShardSampler(Elastic):
    """A batch sampler for an ordinary DataLoader; every sample once an epoch, across resizes::

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

    DataLoader draws several mini-batches ahead of training. So the script must call `record_batch` when it
    has trained on a mini-batch, and `set_epoch` when an epoch is over, as with Horovod's own ElasticSampler.
    When workers change, samples that were drawn and not recorded are drawn and read again. ElasticDataset
    keeps such samples, and resumes faster.
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
        """Make the sampler; for the arguments, see ElasticDataset. Only the length of `dataset` is used."""
        samples = len(dataset)
        super().__init__(
            ShardReader(name, samples, batch_size, seed, partitions, ahead=2, counts_itself=False)
        )
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
        """The weight of the oldest mini-batch that is drawn and not recorded; see ElasticDataset.weight."""
        return self._weights[0] if self._weights else 1.0

    def record_batch(self) -> None:
        """Record that the script has trained on the oldest mini-batch that it has got and not recorded.

        Raises ValueError if there is none.
        """
        self._share.trained()
        self._weights.popleft()
        self._recorded = True

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; do nothing in the middle of it. All workers must call this method.

        Raises RuntimeError if an epoch was drawn to its end and no mini-batch of it was recorded.
        """
        if epoch != self.epoch:
            if self._share.allotment.is_over and self._share.allotment.untrained and not self._recorded:
                raise RuntimeError(
                    f"'{self.name}': epoch {self.epoch} was drawn to its end, and record_batch() never "
                    f"called. Call it after each mini-batch, so that it is known what has been trained on"
                )
            self._recorded = False
        super().set_epoch(epoch)
