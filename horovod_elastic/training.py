"""What a training script may say to flexo. It need not say anything: unmodified Horovod scripts are resized
too.

Everything here works outside of flexo as well (plain Horovod, one process), where it changes nothing: a
script needs no second version. Data for scripts that want it handed out is in horovod_elastic/data.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from horovod_elastic import batches
from horovod_elastic.batches import BadBatch, Share, linear
from horovod_elastic.checkpoints import CheckpointError, CheckpointInfo, load_checkpoint

__all__ = [
    "AggregateBatch",
    "BadBatch",
    "CheckpointError",
    "CheckpointInfo",
    "Share",
    "linear",
    "load_checkpoint",
    "notify_end_of_minibatch",
    "on_batch_change",
    "on_warm_up",
]

_BATCH_KEY = "flexo_aggregate_batch"
"""In the optimizer's parameter groups, beside the learning rate that is right for it: so both are saved,
restored, broadcast and checkpointed together. Not there yet: as the script has made them."""

RateRule = Callable[[float, int, int], float]
"""(learning rate, the aggregate batch that it is for, the one that is wanted) -> learning rate."""


class Boundary(Protocol):
    """What the worker's runtime does at the end of a mini-batch."""

    def __call__(self, samples: int) -> None:
        """Pass the boundary; may raise Horovod's HostsUpdatedInterrupt, or end the process in good order."""
        ...


class Batched(Protocol):
    """A dataset that hands out mini-batches of a size that can be changed, as ElasticDataset does.

    If it has a number `weight`, that is the samples of this worker's newest mini-batch over the mean of all
    workers': not 1.0 where an epoch ends unevenly.
    """

    batch_size: int


class _Script:
    """What the script has said so far, and what the runtime has."""

    def __init__(self) -> None:
        self.boundary: Boundary | None = None
        self.warm_ups: list[Callable[[], object]] = []
        self.batch_hooks: list[Callable[[Share], object]] = []
        self.batches: list[AggregateBatch] = []
        self.aggregate = 0
        """What the present generation began with: also for batches made in the training function."""


_script = _Script()


# --- for scripts -------------------------------------------------------------------------------------------


def notify_end_of_minibatch(samples: int = 0) -> None:
    """The end of a mini-batch (Amoeba, Table 1): the set of workers may change here.

    `state.commit()` and `state.check_host_updates()` say the same. This is for loops that do not have the
    state at hand. `samples`, of this worker in this mini-batch, makes profiles speak of samples a second.
    Nothing is saved: a planned change loses nothing, a crash goes back to the last commit. To be called by
    all workers after the same mini-batches. Outside of flexo it does nothing.
    """
    if _script.boundary is not None:
        _script.boundary(samples)


def on_warm_up(pass_once: Callable[[], object]) -> None:
    """Have `pass_once` called in a new worker while the others still train, before it joins them.

    It should do one forward and one backward pass on data of the right shape made on the spot (zeros will
    do), so that libraries, kernels and allocators are warm at the first real mini-batch. What it does to
    the state, gradients and random numbers of this process is undone. It must not touch the data pipeline.
    If it fails, the worker joins cold.
    """
    _script.warm_ups.append(pass_once)


def on_batch_change(hook: Callable[[Share], object]) -> None:
    """Have `hook` called with this worker's share whenever that changes, after the learning rate has been
    set.
    """
    _script.batch_hooks.append(hook)


class AggregateBatch:
    """How many samples one step of the optimizer takes from all workers together, kept or scaled under
    resizing.

    Without a range from `--elastic-batch` the aggregate batch stays `total` whatever the number of
    workers (Amoeba, section 5.4). With one, flexod's policy picks it within the range, and `learning_rate`
    says what becomes of the learning rate. It takes effect between two generations, on all workers at once.

        batch = AggregateBatch(256, largest=64, optimizer=optimizer, dataset=dataset)
        ...
        for inputs, targets in dataset:               # batch.share.samples of them
            optimizer.zero_grad()
            for x, y, weight in batch.parts(inputs, targets):
                (loss_of(model(x), y) * weight).backward()
            optimizer.step()

    where loss_of takes the mean over the samples of a part.
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        optimizer: Any,
        largest: int = 0,
        dataset: Batched | None = None,
        learning_rate: RateRule = linear,
    ) -> None:
        """`total` samples, for which the optimizer's present learning rate is right.

        None: the least that the job was submitted with. `optimizer` is a hvd.DistributedOptimizer (op Average
        or Sum), or any other outside of Horovod. `largest`: samples that fit into one pass of one worker; 0:
        all. `dataset` gets its batch_size set; such datasets give all workers the same, so the batch is then
        rounded down to a multiple of the workers. Raises BadBatch.
        """
        if total is None:
            total = batches.smallest_allowed()
        if total is None or total < 1:
            raise BadBatch(
                f"an aggregate batch of {total} samples: say how many, or submit with --elastic-batch=MIN-MAX"
            )
        self._optimizer = optimizer
        self._largest = largest
        self._dataset = dataset
        self._learning_rate = learning_rate
        self._averages = _averages(optimizer)
        self._made_for = total
        self._passes = 0
        """As the optimizer was told last."""
        self.share = self._share_of(self._total())
        """What this worker does in a step, until the next generation."""
        self._take(self.share)
        # a training function that makes one is entered again in every generation
        others = [batch for batch in _script.batches if batch._optimizer is not optimizer]
        _script.batches = [*others, self]
        self.take(_script.aggregate)

    def _total(self) -> int:
        """What the learning rates are right for. A state saved before this was made does not say it."""
        for group in self._optimizer.param_groups:
            group.setdefault(_BATCH_KEY, self._made_for)
        return int(self._optimizer.param_groups[0][_BATCH_KEY])

    def parts(self, *tensors: Any) -> Iterator[tuple[Any, ...]]:
        """`tensors`, all of the same length, in parts that fit; each with the weight of its mean loss as
        last member.

        Weighted so, the step is the gradient of the mean loss over the aggregate batch: Horovod (0.28.1)
        adds the gradients of the passes up and takes the mean over workers, whose shares may differ by a
        sample. At the end of an epoch, where fewer samples are left, each weighs what it weighs elsewhere,
        or, with a dataset that tells its `weight`, as much more as makes the mean.
        """
        length = len(tensors[0])
        if not length:
            return
        weight = self._weight(length)
        start = 0
        sizes = batches.split(length, self._largest)
        passes = max(len(sizes), self.share.passes)  # more on a GPU that is faster than others
        if passes != self._passes:
            self._expect_passes(passes)
        for size in sizes:
            cut = [tensor[start : start + size] for tensor in tensors]
            yield (*cut, weight * size / length)
            start += size

    def _weight(self, samples: int) -> float:
        """By what the mean loss of `samples` samples is multiplied before its backward pass."""
        told: float | None = getattr(self._dataset, "weight", None)
        weight = samples * self.share.workers / self.share.aggregate if told is None else told
        return weight if self._averages else weight / self.share.workers

    def take(self, aggregate: int) -> None:
        """A generation begins, with `aggregate` samples a step; 0: as before. The optimizer's state is rank
        0's.
        """
        before = self.share
        made_for = self._total()
        now = aggregate or made_for
        for group in self._optimizer.param_groups:
            if group[_BATCH_KEY] != now:
                group["lr"] = self._learning_rate(group["lr"], int(group[_BATCH_KEY]), now)
                group[_BATCH_KEY] = now
        self.share = self._share_of(now)
        self._take(self.share)
        if self.share != before:
            for hook in _script.batch_hooks:
                hook(self.share)

    def _share_of(self, aggregate: int) -> Share:
        rank, size = _place()
        return batches.share(aggregate, size, rank, self._largest, even=self._dataset is not None)

    def _take(self, share: Share) -> None:
        self._expect_passes(share.passes)
        if self._dataset is not None:
            self._dataset.batch_size = share.samples

    def _expect_passes(self, passes: int) -> None:
        """Have the optimizer exchange gradients after so many backward passes."""
        self._passes = passes
        if hasattr(self._optimizer, "set_backward_passes_per_step"):
            self._optimizer.set_backward_passes_per_step(passes)


# --- for the runtime in this process -----------------------------------------------------------------------


def attach(boundary: Boundary) -> None:
    """The training function is entered: from now on the ends of mini-batches go to `boundary`."""
    _script.boundary = boundary


def generation_begins(aggregate: int) -> None:
    """Between the synchronisation and the first mini-batch of every generation.

    `aggregate`: of the SetBatch that came for this generation; 0 if none did.
    """
    _script.aggregate = aggregate
    for batch in _script.batches:
        batch.take(aggregate)


def samples_in_a_step() -> int:
    """Of this worker; 0 if the script has not said. Several optimizers take turns on the same samples."""
    return max((batch.share.samples for batch in _script.batches), default=0)


def warm_up(state: Any) -> float:
    """In a newcomer, alone, at hvd.elastic.run: what the script has registered, and undo it. Returns its
    seconds.

    The communicator has size 1. A pass that fails is told of, and the worker joins cold.
    """
    if not _script.warm_ups:
        return 0.0
    began = time.monotonic()
    state.save()
    with _random_numbers_unharmed(), _optimizers_unharmed(state):
        for pass_once in _script.warm_ups:
            try:
                pass_once()
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                print(
                    f"flexo: the warm-up failed, this worker joins cold: {text}", file=sys.stderr, flush=True
                )
    state.restore()
    return time.monotonic() - began


@contextlib.contextmanager
def _optimizers_unharmed(state: Any) -> Iterator[None]:
    """Leaves no gradient behind, and no exchange of one that nobody waits for."""
    yield
    for handler in getattr(state, "_handlers", {}).values():
        optimizer = handler.value
        if not hasattr(optimizer, "param_groups"):
            continue
        if getattr(optimizer, "_handles", None):
            optimizer.synchronize()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


@contextlib.contextmanager
def _random_numbers_unharmed() -> Iterator[None]:
    import torch

    numpy = sys.modules.get("numpy")
    plain, of_numpy = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng():
        yield
    random.setstate(plain)
    if numpy:
        numpy.random.set_state(of_numpy)


def _averages(optimizer: Any) -> bool:
    """Whether gradients are averaged over workers; else they are added up."""
    op = getattr(optimizer, "op", None)
    if op is None:
        return True
    import horovod.torch as hvd

    if op == hvd.Adasum:
        raise BadBatch(
            "Adasum does not add gradients up, so an aggregate batch cannot be kept: use Average or Sum"
        )
    return bool(op == hvd.Average)


def _place() -> tuple[int, int]:
    """Rank and size; of one worker alone where Horovod is not used."""
    if "horovod.torch" not in sys.modules:
        return 0, 1
    import horovod.torch as hvd

    return (hvd.rank(), hvd.size()) if hvd.is_initialized() else (0, 1)
