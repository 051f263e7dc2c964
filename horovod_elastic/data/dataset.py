"""ElasticDataset: a DataLoader whose samples all workers of an elastic job share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch

from horovod_elastic.data.allotment import Ranges
from horovod_elastic.data.device import device_ahead
from horovod_elastic.data.elastic import Elastic
from horovod_elastic.data.order import Order, Shuffle
from horovod_elastic.data.reading import Fetch, InlineReader, InProcesses, InThread, ReadAhead, Reader
from horovod_elastic.data.shard_reader import ShardReader


class ElasticDataset(Elastic):
    """Mini-batches of a map-style dataset; every sample exactly once an epoch, across resizes::

        data = ElasticDataset(dataset, batch_size=32, seed=1)
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, data=data)

        @hvd.elastic.run
        def train(state):
            while data.epoch < 90:
                for images, labels in data:
                    ...
                    optimizer.step()
                    state.commit()

    The loop begins where the epoch stands. That is the epoch's beginning or, after workers have come, gone or
    died, the first mini-batch that the state does not hold. When the loop ends, the next epoch has begun.
    Commit after the step, not between taking a mini-batch and training on it: a commit covers every
    mini-batch that was handed out.

    All workers get the same number of mini-batches. Each has `batch_size` samples, except for the last two of
    an epoch: these are divided evenly and may be smaller. Gradients that Horovod averages then weigh samples
    of slightly smaller shares more. To weigh all samples alike, multiply the loss (a mean) by `weight`.

    The dataset reads ahead while the script trains. Without a leader to hand out partitions (plain
    horovodrun, or no Horovod at all), the workers divide the dataset among themselves, with the same
    promises.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: Shuffle = "samples",
        partitions: int | None = None,
        num_workers: int = 0,
        prefetch: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool | None = None,
        device: torch.device | str | None = None,
        prefetch_to_device: int | None = None,
        multiprocessing_context: str | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        name: str = "data",
    ) -> None:
        """Make the dataset. All workers must pass the same arguments.

        Args:
            dataset: has ``__len__`` and ``__getitem__``, or ``__getitems__`` for many samples at once.
            batch_size: number of samples in one mini-batch of one worker.
            seed: decides the order, together with the epoch; 0 or more.
            shuffle: "samples": any sample may follow any other, as with ``DataLoader(shuffle=True)``.
                "partitions": whole partitions in random order, each read from its beginning to its end; for
                data on network storage, which should have been shuffled when it was written.
            partitions: number of ranges of consecutive samples in which the dataset is handed out. By
            default,
                a range has 256 samples, and there are between 64 and 4096 ranges.
            num_workers: number of processes that read, as DataLoader's. They live until this object is gone.
                0: one thread of this process reads (a TensorDataset is not read ahead: it is in memory).
            prefetch: number of mini-batches that are read ahead; by default 2, with processes 2 for each.
            collate_fn: makes a mini-batch of a list of samples; DataLoader's default if not given.
            pin_memory: put mini-batches into page-locked memory; by default if CUDA is available.
            device: give mini-batches on this GPU, such as "cuda", copied ahead on a stream of their own.
                Tensors in lists, tuples, named tuples and dictionaries are copied; anything else is not.
                By default, and with "cpu", mini-batches stay in host memory.
            prefetch_to_device: number of mini-batches that are on the GPU beside the one in training; by
                default 2, and at most `prefetch`. The GPU needs memory for two more.
            multiprocessing_context: "fork", "spawn" or "forkserver", for `num_workers`.
            worker_init_fn: called in each of these processes with the process's number, before it reads.
            name: tells several datasets of one script apart.

        Raises:
            ValueError: an argument is wrong. The message says what is allowed.
        """
        prefetch = 2 * max(num_workers, 1) if prefetch is None else prefetch
        if num_workers < 0 or prefetch < 1:
            raise ValueError(
                f"'{name}': num_workers is {num_workers} and prefetch {prefetch}; allowed: from 0 and from 1"
            )
        most = min(2, prefetch) if prefetch_to_device is None else prefetch_to_device
        if not 1 <= most <= prefetch:
            raise ValueError(
                f"'{name}': prefetch_to_device is {most}; allowed: 1 to {prefetch}, the value of prefetch"
            )
        ahead = device_ahead(name, device, most)
        samples = len(_sized(dataset, name))
        super().__init__(ShardReader(name, samples, batch_size, seed, partitions, ahead=prefetch))
        self._order = Order(samples, shuffle)
        pin = torch.cuda.is_available() if pin_memory is None else pin_memory
        fetch = Fetch(dataset, collate_fn)
        reader: Reader
        if num_workers:
            reader = InProcesses(
                fetch,
                processes=num_workers,
                pin=pin,
                context=multiprocessing_context,
                worker_init=worker_init_fn,
            )
        else:
            reader = InlineReader(fetch) if fetch.is_immediate and not pin else InThread(fetch, pin=pin)
        self._ahead = ReadAhead(reader, ahead)
        self.weight = 1.0
        """The number of samples in the present mini-batch, divided by the mean over all workers.

        It is 0.0 only if fewer samples than workers were left, and this worker got none. Then the mini-batch
        repeats another worker's sample."""

    def __iter__(self) -> Iterator[Any]:
        """The mini-batches that are left of this epoch."""
        share = self._share
        while (batch := share.draw()) is not None:
            epoch = self.epoch
            upcoming = [(epoch, ranges) for ranges in share.upcoming()]
            samples = self._ahead.take((epoch, batch.ranges), upcoming, self._indices)
            self.weight = batch.weight
            yield samples
        share.go_to(self.epoch + 1)

    def _indices(self, key: tuple[int, Ranges]) -> torch.Tensor:
        epoch, ranges = key
        return self._order.indices(ranges, self._share.allotment.whole.seed, epoch)


def _sized(dataset: Any, name: str) -> Sized:
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"'{name}' has no length or no samples by number ({type(dataset).__name__}): a map-style dataset "
            f"is needed. For a reader of your own, see elastic_shard_generator"
        )
    return dataset
