"""elastic_shard_generator: where to read, for scripts with readers of their own (Amoeba, Table 1)."""

from __future__ import annotations

from collections.abc import Iterator

from horovod_elastic.data.allotment import Ranges
from horovod_elastic.data.elastic import Elastic
from horovod_elastic.data.share import Share


class ElasticShards(Elastic):
    """What `elastic_shard_generator` returns: iterate over it, and put it into the TorchState."""

    def __init__(self, share: Share) -> None:
        super().__init__(share)
        self.weight = 1.0
        """Of the present mini-batch; see ElasticDataset."""

    def __iter__(self) -> Iterator[Ranges]:
        """For each mini-batch that is left of this epoch: what it consists of."""
        while (batch := self._share.draw()) is not None:
            self.weight = batch.weight
            yield batch.ranges
        self._share.go_to(self.epoch + 1)

    def upcoming(self) -> list[Ranges]:
        """What the next mini-batches of this worker will probably consist of, for reading ahead."""
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
    """Say for each mini-batch where its samples are: in ranges of consecutive ones (start, length)::

        shards = elastic_shard_generator(samples=len(index), batch_size=32, seed=1)
        for ranges in shards:
            batch = [reader.read(start, length) for start, length in ranges]

    Nearly always a range follows the one before it, within a partition; partitions come in random order. All
    workers get the same number of mini-batches, and each sample is one worker's once an epoch, under the same
    conditions as with ElasticDataset: it is in the TorchState, and commits come after the step. Where the
    worker stands in its partition is reported by the iteration itself.

    Args:
        samples: of the whole dataset.
        batch_size: of one worker.
        seed: decides the order of the partitions, together with the epoch; from 0.
        partitions: ranges of consecutive samples; make it the number of files, if they are of equal size.
        prefetch: how many mini-batches `upcoming` tells.
        name: tells several datasets of one script apart.

    Raises:
        ValueError: what is wrong, and what is allowed.
    """
    return ElasticShards(Share(name, samples, batch_size, seed, partitions, ahead=prefetch))
