"""The calls that a training script may make to flexo. None is required: flexo resizes unmodified Horovod
scripts too.

All calls work outside of flexo as well (plain Horovod, one process), so a script needs no second version.
Datasets whose samples flexo hands out are in horovod_elastic/data.
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
"""Key in the optimizer's parameter groups: the aggregate batch that the group's learning rate is right for.
So both are saved, restored, broadcast and checkpointed together. Groups that the script has just made lack
the key."""
_BEFORE_TRIALS_KEY = "flexo_batch_before_trials"
"""Key beside it: the aggregate batch before trials of others began (batch_trials.py); 0: none are under way.
A new generation breaks trials off. It then takes this batch, on newcomers too."""

RateRule = Callable[[float, int, int], float]
"""(learning rate, its aggregate batch, the new aggregate batch) -> the new learning rate."""


class Boundary(Protocol):
    """The worker's runtime at the end of a mini-batch."""

    def __call__(self, samples: int) -> None:
        """Pass the boundary. It may raise Horovod's HostsUpdatedInterrupt, or end the process in order."""
        ...


class Batched(Protocol):
    """A dataset that hands out mini-batches of a size that can be changed, as ElasticDataset does.

    If it has a number `weight`, that is the size of this worker's newest mini-batch, divided by the mean size
    over all workers. `weight` differs from 1.0 where an epoch ends unevenly.
    """

    batch_size: int


class ScriptSettings:
    """The script's settings so far, and the runtime's."""

    def __init__(self) -> None:
        self.boundary: Boundary | None = None
        self.warm_ups: list[Callable[[], object]] = []
        self.batch_hooks: list[Callable[[Share], object]] = []
        self.batches: list[AggregateBatch] = []
        self.aggregate = 0
        """Aggregate batch at the beginning of the present generation (0: the script's own). It also applies
        to an AggregateBatch made in the training function."""


script = ScriptSettings()


# --- for scripts -------------------------------------------------------------------------------------------


def notify_end_of_minibatch(samples: int = 0) -> None:
    """Mark the end of a mini-batch (Amoeba, Table 1). The set of workers may change here.

    `state.commit()` and `state.check_host_updates()` mark it too. This call is for loops that do not have the
    state at hand. `samples`: number of samples of this worker in this mini-batch, so that profiles report
    samples a second. The call saves nothing: a planned change loses nothing, and a crash goes back to the
    last commit. All workers must call it after the same mini-batches. Outside of flexo it does nothing.
    """
    if script.boundary is not None:
        script.boundary(samples)


def on_warm_up(pass_once: Callable[[], object]) -> None:
    """Have `pass_once` called in a new worker while the others still train, before it joins them.

    `pass_once` should do one forward and one backward pass on new data of the right shape (zeros will do).
    Then libraries, kernels and allocators are warm at the first real mini-batch. flexo undoes the effects of
    the pass on the state, gradients and random numbers of this process. `pass_once` must not touch the data
    pipeline. If it fails, the worker joins cold.
    """
    script.warm_ups.append(pass_once)


def on_batch_change(hook: Callable[[Share], object]) -> None:
    """Have `hook` called with this worker's share whenever the share changes, after the learning rate has
    been set.
    """
    script.batch_hooks.append(hook)


class AggregateBatch:
    """The number of samples that one step of the optimizer takes from all workers together, kept or scaled
    under resizing.

    Without a range from `--elastic-batch` the aggregate batch stays `total` whatever the number of workers
    (Amoeba, section 5.4). With a range, flexod's policy picks the batch within the range, and `learning_rate`
    computes the new learning rate. A new batch takes effect between two generations, on all workers at once.

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
        """`total`: number of samples for which the optimizer's present learning rate is right.

        `total` None: the lower end of the range that the job was submitted with. `optimizer`: a
        hvd.DistributedOptimizer (op Average or Sum), or any other outside of Horovod. `largest`: samples that
        fit into one pass of one worker; 0: all. `dataset`: a dataset whose batch_size is set. Such datasets
        give all workers the same number, so the batch is rounded down to a multiple of the workers. Raises
        BadBatch.
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
        """Backward passes a step that the optimizer was last told to expect."""
        self._samples = 0
        """The samples of this worker in the last step whose number was not taken yet."""
        self.share = self._share_of(self._total())
        """The work of this worker in a step, until the next generation."""
        self._take(self.share)
        # a training function that makes an AggregateBatch is entered again in every generation
        others = [batch for batch in script.batches if batch._optimizer is not optimizer]
        script.batches = [*others, self]
        self.take(script.aggregate)

    def _total(self) -> int:
        """The aggregate batch that the learning rates are right for. A state that was saved before this
        object was made does not contain it."""
        for group in self._optimizer.param_groups:
            group.setdefault(_BATCH_KEY, self._made_for)
            group.setdefault(_BEFORE_TRIALS_KEY, 0)
        return int(self._optimizer.param_groups[0][_BATCH_KEY])

    def parts(self, *tensors: Any) -> Iterator[tuple[Any, ...]]:
        """Cut `tensors`, all of the same length, into parts that fit. The last member of each part is the
        weight of its mean loss.

        With these weights, the step is the gradient of the mean loss over the aggregate batch. Horovod
        (0.28.1) adds up the gradients of the passes and takes the mean over workers, whose shares may differ
        by a sample. At the end of an epoch, where fewer samples are left, each sample has its usual weight.
        With a dataset that has a `weight`, each sample weighs more there, so that the step is again the mean.
        """
        length = len(tensors[0])
        if not length:
            return
        self._samples = length
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
        """The factor for the mean loss of `samples` samples before its backward pass."""
        told: float | None = getattr(self._dataset, "weight", None)
        weight = samples * self.share.workers / self.share.aggregate if told is None else told
        return weight if self._averages else weight / self.share.workers

    def take(self, aggregate: int) -> None:
        """Begin a generation with `aggregate` samples a step; 0: as before. The optimizer already has rank
        0's state. Trials are over.
        """
        made_for = self._total()
        groups = self._optimizer.param_groups
        before_trials = int(groups[0][_BEFORE_TRIALS_KEY])
        for group in groups:
            group[_BEFORE_TRIALS_KEY] = 0
        self._change_to(aggregate or before_trials or made_for)

    def try_out(self, aggregate: int) -> None:
        """Train with `aggregate` samples a step for a trial; 0: trials are over."""
        if not aggregate:
            self.take(0)
            return
        made_for = self._total()
        for group in self._optimizer.param_groups:
            group[_BEFORE_TRIALS_KEY] = group[_BEFORE_TRIALS_KEY] or made_for
        self._change_to(aggregate)

    def take_samples(self) -> int:
        """The samples of this worker in the step that has just ended; 0: no step has ended."""
        samples, self._samples = self._samples, 0
        return samples

    @property
    def weights(self) -> int:
        """Number of weights whose gradients workers exchange."""
        return sum(
            weight.numel()
            for group in self._optimizer.param_groups
            for weight in group["params"]
            if weight.requires_grad
        )

    @property
    def largest(self) -> int:
        """Samples that fit into one pass of one worker; 0: the script has not said."""
        return self._largest

    def _change_to(self, now: int) -> None:
        before = self.share
        for group in self._optimizer.param_groups:
            if group[_BATCH_KEY] != now:
                group["lr"] = self._learning_rate(group["lr"], int(group[_BATCH_KEY]), now)
                group[_BATCH_KEY] = now
        self.share = self._share_of(now)
        self._take(self.share)
        if self.share != before:
            for hook in script.batch_hooks:
                hook(self.share)

    def _share_of(self, aggregate: int) -> Share:
        rank, size = rank_and_size()
        return batches.share(aggregate, size, rank, self._largest, even=self._dataset is not None)

    def _take(self, share: Share) -> None:
        self._expect_passes(share.passes)
        if self._dataset is not None:
            self._dataset.batch_size = share.samples

    def _expect_passes(self, passes: int) -> None:
        """Have the optimizer exchange gradients after this number of backward passes."""
        self._passes = passes
        if hasattr(self._optimizer, "set_backward_passes_per_step"):
            self._optimizer.set_backward_passes_per_step(passes)


# --- for the runtime in this process -----------------------------------------------------------------------


def attach(boundary: Boundary) -> None:
    """Report the ends of mini-batches to `boundary` from now on, because the training function is entered."""
    script.boundary = boundary


def generation_begins(aggregate: int) -> None:
    """Begin a generation: called between the synchronisation and the first mini-batch of every generation.

    `aggregate`: aggregate batch in the SetBatch message for this generation; 0 if none came.
    """
    script.aggregate = aggregate
    for batch in script.batches:
        batch.take(aggregate)


def samples_in_a_step() -> int:
    """Number of samples of this worker in a step; 0 if the script has not said.

    Several optimizers take turns on the same samples, so their numbers are not added up.
    """
    return max((batch.share.samples for batch in script.batches), default=0)


def take_samples() -> int:
    """The samples of this worker in the step that has just ended; 0: none has, or the script has not said."""
    return max((batch.take_samples() for batch in script.batches), default=0)


def model() -> tuple[int, int]:
    """Weights of the model, and samples that fit one pass of a worker; (0, 0): the script has not said."""
    return max(((batch.weights, batch.largest) for batch in script.batches), default=(0, 0))


def try_out(aggregate: int) -> None:
    """Train with `aggregate` samples a step for a trial; 0: trials are over. All workers call it at once."""
    for batch in script.batches:
        batch.try_out(aggregate)


def warm_up(state: Any) -> float:
    """Run the passes that the script has registered, in a newcomer at hvd.elastic.run; undo their effects.

    Returns the seconds taken. The newcomer is still alone: its communicator has size 1. A pass that fails is
    reported, and the worker joins cold.
    """
    if not script.warm_ups:
        return 0.0
    began = time.monotonic()
    state.save()
    with _random_numbers_unharmed(), _optimizers_unharmed(state):
        for pass_once in script.warm_ups:
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
    """A context that leaves no gradient behind, and no exchange of gradients pending."""
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


def rank_and_size() -> tuple[int, int]:
    """This worker's rank and the number of workers; 0 and 1 where Horovod is not used."""
    if "horovod.torch" not in sys.modules:
        return 0, 1
    import horovod.torch as hvd

    return (hvd.rank(), hvd.size()) if hvd.is_initialized() else (0, 1)
