"""Has Lightning's Trainer follow the size of the job.

Lightning's loaders have DistributedSamplers, which loaders.py knows. Its loops count in objects. A newcomer
takes over their state and that of the callbacks, in the form that Lightning puts into its checkpoints. Its
callbacks hear of nothing until then.
"""

from __future__ import annotations

import os
import weakref
from types import ModuleType
from typing import Any

import torch

from horovod_elastic.worker.ddp import script_frames, training_loop
from horovod_elastic.worker.ddp.frameworks import trackers
from horovod_elastic.worker.ddp.hooks import BASE, ELASTIC
from horovod_elastic.worker.ddp.training_loop import TrainingLoop
from horovod_elastic.worker.state_messages import StatePart

_HEARD_BY_NEWCOMERS = (
    *("setup", "teardown", "on_fit_start", "on_fit_end", "on_train_start", "on_train_end"),
    *("on_sanity_check_start", "on_sanity_check_end"),
)
"""Hooks that each process hears once, or that belong to its own beginning."""


def patch_environment(module: ModuleType) -> None:
    """Hook the environment of torchrun, of which Lightning reads the number of workers.

    A newcomer is told the number of the base until it joins. Lightning compares it with the devices and nodes
    that the script names. A newcomer is not rank 0 until then, so that it begins no logger.
    """
    loop = training_loop.current()
    newcomer = os.environ.get("FLEXO_NEWCOMER") == "1" or loop.is_new
    if newcomer and os.environ.get(ELASTIC) == "1":
        os.environ["WORLD_SIZE"] = os.environ[BASE]
        if os.environ["RANK"] == "0":
            os.environ["RANK"] = "1"


def patch_strategy(module: ModuleType) -> None:
    """Hook DDPStrategy, for ranks and devices beyond those of the base."""
    kind = module.DDPStrategy
    sampler_kwargs, root_device = kind.distributed_sampler_kwargs.fget, kind.root_device.fget

    def distributed_sampler_kwargs(self: Any) -> dict[str, Any]:
        kwargs = sampler_kwargs(self)
        if training_loop.current().is_resizable:
            kwargs["rank"] %= kwargs["num_replicas"]  # flexo deals the batches out, by the true rank
        return dict(kwargs)

    def device(self: Any) -> torch.device:
        if self.local_rank < len(self.parallel_devices):
            return root_device(self)
        kind = self.parallel_devices[0].type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, self.local_rank)

    kind.distributed_sampler_kwargs = property(distributed_sampler_kwargs)
    kind.root_device = property(device)


def patch_calls(module: ModuleType) -> None:
    """Hook the calls of callbacks: those of a newcomer hear only of steps that count."""
    loop = training_loop.current()
    call = module._call_callback_hooks

    def call_callback_hooks(trainer: Any, hook_name: str, *args: Any, **kwargs: Any) -> None:
        if not loop.is_new or hook_name in _HEARD_BY_NEWCOMERS:
            call(trainer, hook_name, *args, **kwargs)

    module._call_callback_hooks = call_callback_hooks  # type: ignore[attr-defined]


def patch_loop(module: ModuleType) -> None:
    """Hook the loop of fit()."""
    loop = training_loop.current()
    kind = module._FitLoop
    set_up = kind.setup_data

    def setup_data(self: Any) -> None:
        set_up(self)
        if loop.is_resizable and self._combined_loader is not None and not hasattr(self, "_flexo"):
            self._flexo = True
            _attach(self, loop)

    kind.setup_data = setup_data


def _attach(fit_loop: Any, loop: TrainingLoop) -> None:
    if obstacle := _obstacle(fit_loop, loop):
        loop.keep_size(f"{obstacle} (Lightning's fit() at {script_frames.caller()})")
        return
    loop.count_steps("Lightning's Trainer")
    loop.follows_rank()
    trainer = fit_loop.trainer
    _continue_runs(trainer.loggers, trainer.strategy.broadcast(_runs(trainer.loggers)))
    reference = weakref.ref(fit_loop)
    loop.captured.part(lambda: _LoopPart(reference))
    loop.on_arrival(lambda _: _take_place(reference, loop))


def _obstacle(fit_loop: Any, loop: TrainingLoop) -> str:
    """Why the loop's batches cannot be dealt out anew; "" if they can."""
    loaders = fit_loop._combined_loader.flattened
    if len(loaders) != 1:
        return f"it trains on {len(loaders)} DataLoaders at once"
    if type(fit_loop._data_fetcher).__name__ != "_PrefetchDataFetcher":
        return "its training_step takes the iterator over the DataLoader (dataloader_iter)"
    if isinstance(loaders[0].dataset, torch.utils.data.IterableDataset):
        return "it loads an IterableDataset, whose samples flexo cannot deal out anew"
    known = loop.loaders.of(loaders[0])
    if known is None or known.source() is None:
        names = type(loaders[0].batch_sampler).__name__, type(loaders[0].sampler).__name__
        return f"its batches come from objects of the classes {names[0]} and {names[1]}"
    return ""


def _take_place(reference: weakref.ref[Any], loop: TrainingLoop) -> None:
    """Have Lightning read this worker's rank and the number of workers anew."""
    os.environ.update(RANK=str(loop.group.rank()), WORLD_SIZE=str(loop.group.size()))
    if (fit_loop := reference()) is not None:
        trainer = fit_loop.trainer
        was_main = trainer.is_global_zero
        trainer.strategy.set_world_ranks()
        if trainer.is_global_zero and not was_main:
            _show_progress(trainer)
        elif was_main and not trainer.is_global_zero:
            trackers.finish_wandb()
            for logger in trainer.loggers:
                if _is_wandb(logger) or _is_board(logger):
                    logger._experiment = None


def _show_progress(trainer: Any) -> None:
    """Begin the progress bar: Lightning shows that of rank 0 only."""
    if (bar := trainer.progress_bar_callback) is not None:
        bar.enable()
        bar.on_train_start(trainer, trainer.lightning_module)
        bar.on_train_epoch_start(trainer, trainer.lightning_module)


def _runs(loggers: list[Any]) -> list[str | int | None]:
    """By logger, the run that rank 0's has begun: its id or its version; None for loggers of other kinds.

    A CSVLogger would delete what another process has written.
    """
    return [each.version if _is_wandb(each) or _is_board(each) else None for each in loggers]


def _continue_runs(loggers: list[Any], runs: list[str | int | None]) -> None:
    """Have loggers go on with these runs once this worker is rank 0."""
    for logger, run in zip(loggers, runs, strict=True):
        if run is not None and _is_wandb(logger):
            logger._wandb_init["id"] = vars(logger)["_id"] = run
        elif run is not None:
            vars(logger)["_version"] = run


def _is_wandb(logger: Any) -> bool:
    return isinstance(getattr(logger, "_wandb_init", None), dict)


def _is_board(logger: Any) -> bool:
    return type(logger).__name__ == "TensorBoardLogger"


class _LoopPart(StatePart):
    """The counters of Lightning's loops, and the state of its callbacks, as a part of the state."""

    def __init__(self, fit_loop: weakref.ref[Any]) -> None:
        self._fit_loop = fit_loop

    def own(self) -> Any:
        fit_loop = self._fit_loop()
        if fit_loop is None:
            return None
        trainer = fit_loop.trainer
        callbacks = [each.state_dict() for each in trainer.callbacks]
        fetched = fit_loop._data_fetcher.fetched
        return fit_loop.state_dict(), fetched, callbacks, trainer.should_stop, _runs(trainer.loggers)

    def take_over(self, theirs: Any) -> None:
        fit_loop = self._fit_loop()
        if fit_loop is None or theirs is None:
            return
        counters, fetched, callbacks, should_stop, runs = theirs
        _continue_runs(fit_loop.trainer.loggers, runs)
        fit_loop.load_state_dict(counters)
        for each in (fit_loop, fit_loop.epoch_loop, fit_loop.epoch_loop.val_loop):
            each.on_iteration_done()  # nothing restarts: the loop goes on with these counters
        fit_loop._data_fetcher.fetched = fetched
        fit_loop.epoch_loop._results.reset()  # of steps that did not count
        for callback, state in zip(fit_loop.trainer.callbacks, callbacks, strict=True):
            if state:
                if "dirpath" in state and hasattr(callback, "dirpath"):
                    callback.dirpath = state["dirpath"]  # it may depend on the logger's run
                callback.load_state_dict(state)
        fit_loop.trainer.should_stop = should_stop
