"""Has Hugging Face's Trainer follow the size of the job. Its loaders are Accelerate's (accelerate.py).

The Trainer counts its batches in local variables, up to totals that it computes once. So a newcomer gets a
placeholder for each batch that the others have had, which costs no computation, and takes over TrainerState.
Its callbacks hear of nothing until then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from horovod_elastic.worker.ddp import training_loop
from horovod_elastic.worker.ddp.frameworks import trackers
from horovod_elastic.worker.ddp.training_loop import TrainingLoop
from horovod_elastic.worker.state_messages import StatePart

_OF_THIS_PROCESS = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks")
"""Fields of TrainerState that are not handed over."""
_COUNTERS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
"""Attributes of the Trainer that are."""
_HEARD_BY_NEWCOMERS = ("on_init_end", "on_train_begin")
"""Events that each process hears once, before its first step."""


class Placeholder(dict[str, Any]):
    """A batch that a newcomer is given for one that the others have had."""


def patch_callbacks(module: ModuleType) -> None:
    """Hook transformers.trainer_callback: callbacks of a newcomer hear only of steps that count."""
    loop = training_loop.current()
    handler = module.CallbackHandler
    call = handler.call_event

    def call_event(self: Any, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if loop.is_new and event not in _HEARD_BY_NEWCOMERS:
            return control
        return call(self, event, args, state, control, **kwargs)

    handler.call_event = call_event


def patch_trainer(module: ModuleType) -> None:
    """Hook transformers.trainer."""
    loop = training_loop.current()
    trainer = module.Trainer
    made = trainer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if loop.is_resizable:
            _attach(self, loop)

    trainer.__init__ = functools.wraps(made)(init)


def _attach(trainer: Any, loop: TrainingLoop) -> None:
    if trainer.args.auto_find_batch_size:
        loop.keep_size("auto_find_batch_size changes the batch of HF's Trainer as it trains")
        return
    loop.count_steps("HF's Trainer", Placeholder)
    losses, runs = _Losses(), _Runs()
    reference = weakref.ref(trainer)
    loop.follows_rank()
    # The methods of the object: a subclass may have overridden those of the class.
    trainer.training_step = _training_step(trainer.training_step, reference, loop)
    trainer.floating_point_ops = _unless_new(trainer.floating_point_ops, loop, 0)
    trainer._maybe_log_save_evaluate = losses.around(trainer._maybe_log_save_evaluate, loop)
    if hasattr(trainer, "_track_num_input_tokens"):
        trainer._track_num_input_tokens = _unless_new(trainer._track_num_input_tokens, loop, None)
    trainer.callback_handler.on_train_begin = runs.around(trainer.callback_handler, loop)
    loop.captured.part(lambda: _TrainerPart(reference, losses, runs))
    loop.on_arrival(lambda _: _take_place(reference, runs))


def _unless_new(method: Callable[..., Any], loop: TrainingLoop, instead: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        return instead if loop.is_new else method(*args, **kwargs)

    return called


def _training_step(
    method: Callable[..., Any], reference: weakref.ref[Any], loop: TrainingLoop
) -> Callable[..., Any]:
    @functools.wraps(method)
    def step(model: Any, inputs: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        trainer = reference()
        assert trainer is not None
        if isinstance(inputs, Placeholder):
            return torch.zeros((), device=trainer.args.device)
        if num_items_in_batch is not None:
            if _weighs(trainer):
                loop.group.weight = 1.0  # the loss is a sum already, over the number of all workers' items
            kwargs["num_items_in_batch"] = num_items_in_batch
        return method(model, inputs, **kwargs)

    return step


def _weighs(trainer: Any) -> bool:
    """Whether the Trainer divides losses by the number of items of all workers."""
    accepts = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func
    return bool(trainer.args.average_tokens_across_devices and accepts)


def _take_place(reference: weakref.ref[Any], runs: _Runs) -> None:
    """Be rank 0, if this worker has become it because the one before is lost; or be it no more.

    The Trainer's own callbacks, such as its progress bar, begin their work for rank 0 then.
    """
    trainer = reference()
    if trainer is None:
        return
    state, was_main = trainer.state, trainer.state.is_world_process_zero
    state.is_world_process_zero = trainer.is_world_process_zero()
    state.is_local_process_zero = trainer.is_local_process_zero()
    handler = trainer.callback_handler
    own = [each for each in handler.callbacks if type(each).__module__.startswith("transformers.")]
    if was_main and not state.is_world_process_zero:
        runs.end(own)
    elif state.is_world_process_zero and not was_main:
        about = {"model": handler.model, "train_dataloader": handler.train_dataloader}
        with runs.going_on(own):
            for callback in own:
                callback.on_train_begin(trainer.args, state, trainer.control, **about)


@dataclasses.dataclass(slots=True)
class _Runs:
    """The runs that rank 0's callbacks have begun with their trackers. `board`: TensorBoard's folder."""

    wandb: trackers.WandbRun | None = None
    board: str | None = None

    def around(self, handler: Any, loop: TrainingLoop) -> Callable[..., Any]:
        """Have all workers know what rank 0's callbacks begin when training begins."""
        method = handler.on_train_begin

        @functools.wraps(method)
        def on_train_begin(*args: Any, **kwargs: Any) -> Any:
            control = method(*args, **kwargs)
            board = next(iter(_boards(handler.callbacks)), None)
            told: list[Any] = [(trackers.wandb_run(), getattr(board, "logging_dir", None))]
            if loop.is_resizable:
                dist.broadcast_object_list(told, src=0)
            self.wandb, self.board = told[0]
            return control

        return on_train_begin

    @contextlib.contextmanager
    def going_on(self, callbacks: list[Any]) -> Iterator[None]:
        """Have callbacks that begin their work go on with these runs."""
        for each in _boards(callbacks):
            each.logging_dir = self.board
        for each in callbacks:
            if hasattr(each, "_initialized"):
                each._initialized = False
        with trackers.going_on_with(self.wandb):
            yield

    @staticmethod
    def end(callbacks: list[Any]) -> None:
        """End this process's part of the runs."""
        trackers.finish_wandb()
        for each in _boards(callbacks):
            if each.tb_writer is not None:
                each.tb_writer.close()
                each.tb_writer = None


def _boards(callbacks: list[Any]) -> list[Any]:
    """The callbacks for TensorBoard."""
    return [each for each in callbacks if hasattr(each, "tb_writer") and hasattr(each, "logging_dir")]


class _Losses:
    """The sum of the losses since the last log, which releases before 5 keep in a local variable."""

    def __init__(self) -> None:
        self.sum: torch.Tensor | None = None

    def around(self, method: Callable[..., None], loop: TrainingLoop) -> Callable[..., None]:
        """Call the Trainer's method that logs, saves and evaluates, if its step counts."""

        @functools.wraps(method)
        def maybe_log_save_evaluate(tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.sum = tr_loss
            if not loop.is_muted:
                method(tr_loss, *args, **kwargs)

        return maybe_log_save_evaluate


class _TrainerPart(StatePart):
    """A Trainer's counters and those of its callbacks, as a part of the state."""

    def __init__(self, trainer: weakref.ref[Any], losses: _Losses, runs: _Runs) -> None:
        self._trainer = trainer
        self._losses = losses
        self._runs = runs

    def own(self) -> Any:
        trainer = self._trainer()
        if trainer is None:
            return None
        fields = [each.name for each in dataclasses.fields(trainer.state)]
        state = {name: getattr(trainer.state, name) for name in fields if name not in _OF_THIS_PROCESS}
        counters = {name: getattr(trainer, name) for name in _COUNTERS if hasattr(trainer, name)}
        callbacks = [each.state()["attributes"] for each in _exportable(trainer)]
        losses = None if self._losses.sum is None else self._losses.sum.clone()
        return state, counters, callbacks, losses, (self._runs.wandb, self._runs.board)

    def take_over(self, theirs: Any) -> None:
        trainer = self._trainer()
        if trainer is None or theirs is None:
            return
        state, counters, callbacks, losses, (self._runs.wandb, self._runs.board) = theirs
        for name, value in state.items():
            setattr(trainer.state, name, value)
        for name, value in counters.items():
            setattr(trainer, name, value)
        for callback, attributes in zip(_exportable(trainer), callbacks, strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)
        if losses is not None and self._losses.sum is not None:
            self._losses.sum.detach().copy_(losses)


def _exportable(trainer: Any) -> list[Any]:
    """The callbacks that say what their state is."""
    return [each for each in trainer.callback_handler.callbacks if callable(getattr(each, "state", None))]
