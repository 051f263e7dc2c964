"""What the faces of the data pipeline have in common: epoch, batch size, place in Horovod's TorchState."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from horovod_elastic.data import communicator
from horovod_elastic.data.share import Share, check_batch_size
from horovod_elastic.data.sizes import steps_left

_named: WeakValueDictionary[str, Elastic] = WeakValueDictionary()


class Elastic:
    """A dataset whose samples all workers share, each sample once an epoch, while workers come and go.

    Put it into the state, under any name: ``TorchState(model=model, optimizer=optimizer, data=data)``. Then
    `commit` saves where the epoch stands, a crash goes back to that, and newcomers take it over.
    """

    def __init__(self, share: Share) -> None:
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
        """Go to the beginning of `epoch`; does nothing in the middle of it. To be called by all workers.

        Raises ValueError if it is negative.
        """
        if epoch < 0:
            raise ValueError(f"'{self.name}': epoch is {epoch}; allowed: 0 or more")
        if epoch != self.epoch:
            self._share.go_to(epoch)

    @property
    def name(self) -> str:
        """What tells it from other datasets of the script."""
        return self._share.allotment.whole.name

    @property
    def batch_size(self) -> int:
        """Samples of one mini-batch of one worker; of a heterogeneous job, in the mean of all workers.

        May be set at any time, on all workers alike. It counts from the next mini-batch when set outside of
        the loop over the data (after a resize, for example), inside of it from the next but one: the workers
        have to agree first. If they want different sizes, the smallest counts.
        """
        return self._share.allotment.batch_size

    @batch_size.setter
    def batch_size(self, samples: int) -> None:
        check_batch_size(self.name, samples)
        self._share.allotment.batch_size = samples

    @property
    def samples_left(self) -> int:
        """Samples of this epoch, over all workers, that were not handed out yet."""
        return self._share.allotment.samples_left

    def __len__(self) -> int:
        """Mini-batches left in this epoch, with the present number of workers."""
        _, size = communicator.present().place()
        return steps_left(self.samples_left, size, self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands, as numbers and lists; for checkpoints. Does not depend on the worker."""
        return self._share.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state says, with any number of workers. To be called by all workers, or by rank 0
        before it synchronises.

        The state's seed and partitions are taken over. Raises ValueError if it is of a dataset of another
        size.
        """
        self._share.load_state_dict(state)


def register() -> None:
    """Tell Horovod, if it is there, how to keep an `Elastic` in a TorchState."""
    try:
        from horovod.torch.elastic.state import SamplerStateHandler, get_handler_registry
    except (ImportError, FileNotFoundError):  # also: Horovod without PyTorch, or its Python files alone
        return

    class ElasticHandler(SamplerStateHandler):  # type: ignore[misc]  # Horovod is not checked
        """Synchronised as samplers are. Commits and goes back without copying what is consumed."""

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
