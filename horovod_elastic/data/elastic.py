"""The common parts of the data pipeline's interfaces: epoch, batch size, place in Horovod's TorchState."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from horovod_elastic.data import communicator
from horovod_elastic.data.shard_reader import ShardReader, check_batch_size
from horovod_elastic.data.sizes import steps_left

_named: WeakValueDictionary[str, Elastic] = WeakValueDictionary()


class Elastic:
    """A dataset whose samples all workers share, each sample once an epoch, while workers come and go.

    Put it into the state, under any name: ``TorchState(model=model, optimizer=optimizer, data=data)``. Then
    `commit` saves the state of the epoch, a crash goes back to that state, and newcomers take it over.
    """

    def __init__(self, share: ShardReader) -> None:
        name = share.allotment.whole.name
        if name in _named:
            raise ValueError(
                f"there is another dataset called '{name}'; give each its own: name='validation', for example"
            )
        _named[name] = self
        self._share = share

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that the present or the next loop goes through."""
        return self._share.allotment.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; do nothing in the middle of it. All workers must call this method.

        Raises ValueError if `epoch` is negative.
        """
        if epoch < 0:
            raise ValueError(f"'{self.name}': epoch is {epoch}; allowed: 0 or more")
        if epoch != self.epoch:
            self._share.go_to(epoch)

    @property
    def name(self) -> str:
        """The dataset's name, which is unique in the script."""
        return self._share.allotment.whole.name

    @property
    def batch_size(self) -> int:
        """The samples in one mini-batch of one worker; in a heterogeneous job, the mean over all workers.

        Set it at any time, on all workers alike. A change outside of the loop over the data (after a resize,
        for example) counts from the next mini-batch. A change inside of the loop counts from the next
        mini-batch but one, because the workers have to agree first. If the workers set different sizes, the
        smallest counts.
        """
        return self._share.allotment.batch_size

    @batch_size.setter
    def batch_size(self, samples: int) -> None:
        check_batch_size(self.name, samples)
        self._share.allotment.batch_size = samples

    @property
    def samples_left(self) -> int:
        """The number of this epoch's samples, over all workers, that were not handed out yet."""
        return self._share.allotment.samples_left

    def __len__(self) -> int:
        """The number of mini-batches left in this epoch, with the present number of workers."""
        _, size = communicator.present().place()
        return steps_left(self.samples_left, size, self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """The state of the epoch, as numbers and lists, for checkpoints. It does not depend on the worker."""
        return self._share.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state says, with any number of workers.

        All workers must call this method, or rank 0 before it synchronises. The dataset takes over the
        state's seed and partitions. Raises ValueError if the state is that of a dataset of another size.
        """
        self._share.load_state_dict(state)


def register() -> None:
    """Tell Horovod, if it is there, how to keep an `Elastic` in a TorchState."""
    try:
        from horovod.torch.elastic.state import SamplerStateHandler, get_handler_registry
    except (ImportError, FileNotFoundError):  # also: Horovod without PyTorch, or its Python files alone
        return

    class ElasticHandler(SamplerStateHandler):  # type: ignore[misc]  # Horovod is not checked
        """Synchronises as Horovod's samplers do. Commits and restores without copying consumed samples."""

        def __init__(self, value: Elastic) -> None:
            self.value = value
            self.save()

        def save(self) -> None:
            self.value._share.save()

        def restore(self) -> None:
            self.value._share.restore()

    registry = get_handler_registry()
    if not any(kind is Elastic for kind, _ in registry):
        registry.append((Elastic, ElasticHandler))
