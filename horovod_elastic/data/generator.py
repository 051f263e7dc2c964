"""elastic_shard_generator: it says where to read, for scripts with readers of their own (Amoeba, Table 1)."""

from __future__ import annotations

from collections.abc import Iterator

from horovod_elastic.data.allotment import Ranges
from horovod_elastic.data.elastic import Elastic
from horovod_elastic.data.shard_reader import ShardReader


class ElasticShards(Elastic):
    """The result of `elastic_shard_generator`: iterate over it, and put it into the TorchState."""

    def __init__(self, share: ShardReader) -> None:
        super().__init__(share)
        self.weight = 1.0
        """The weight of the present mini-batch; see ElasticDataset.weight."""

    def __iter__(self) -> Iterator[Ranges]:
        """The ranges of each mini-batch that is left of this epoch."""
        while (batch := self._share.draw()) is not None:
            self.weight = batch.weight
            yield batch.ranges
        self._share.go_to(self.epoch + 1)

    def upcoming(self) -> list[Ranges]:
        """The probable ranges of this worker's next mini-batches, for reading ahead."""
        return self._share.upcoming()


def elastic_shard_generator(
    samples: int,
    batch_size: int,
    *,
    seed: int = 0,
    partitions: int | None = None,
    prefetch: int = 2,
    name: str = "data",
) -> ElasticShards:
    """Say for each mini-batch where its samples are, as ranges of consecutive samples (start, length)::

        shards = elastic_shard_generator(samples=len(index), batch_size=32, seed=1)
        for ranges in shards:
            batch = [reader.read(start, length) for start, length in ranges]

    Nearly always a range follows the range before it, within a partition. Partitions come in random order.
    All workers get the same number of mini-batches, and each sample goes to one worker once an epoch. The
    conditions are those of ElasticDataset: the result is in the TorchState, and commits come after the step.
    The iteration itself reports the worker's place in its partition.

    Args:
        samples: number of samples in the whole dataset.
        batch_size: number of samples in one mini-batch of one worker.
        seed: decides the order of the partitions, together with the epoch; 0 or more.
        partitions: number of ranges of consecutive samples in which the dataset is handed out. Make it the
            number of files, if the files are of equal size.
        prefetch: number of mini-batches that `upcoming` returns.
        name: tells several datasets of one script apart.

    Raises:
        ValueError: an argument is wrong. The message says what is allowed.
    """
    return ElasticShards(ShardReader(name, samples, batch_size, seed, partitions, ahead=prefetch))
