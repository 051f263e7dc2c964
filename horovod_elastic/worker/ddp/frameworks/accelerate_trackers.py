"""Accelerate's trackers, which log in the process of rank 0: its successor goes on with their runs.

Scripts call init_trackers on all workers, or on rank 0 alone. So rank 0 tells the others what it was called
with where all workers are at the same call: at the beginning of each iteration over a prepared loader.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from horovod_elastic.worker.ddp.frameworks import trackers
from horovod_elastic.worker.ddp.frameworks.trackers import WandbRun
from horovod_elastic.worker.ddp.training_loop import TrainingLoop
from horovod_elastic.worker.state_messages import StatePart


@dataclass(frozen=True, slots=True)
class _Begun:
    """The trackers that rank 0 has begun. `options`: init_trackers' init_kwargs."""

    project: str
    options: Any
    run: WandbRun | None


class Trackers(StatePart):
    """The trackers of this process's Accelerator, as a part of the state."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._accelerator: Callable[[], Any] = lambda: None
        self._begun: _Begun | None = None
        self._init: Any = None
        """Accelerator.init_trackers."""

    def patch(self, kind: Any) -> None:
        """Hook the class Accelerator."""
        self._init, log = kind.init_trackers, kind.log

        @functools.wraps(self._init)
        def init_trackers(
            accelerator: Any, project_name: str, config: Any = None, init_kwargs: Any = None
        ) -> None:
            if not self._loop.is_new:
                options = init_kwargs or {}
                self._init(accelerator, project_name, config, options)
                self._accelerator = weakref.ref(accelerator)
                self._begun = _Begun(project_name, options, trackers.wandb_run())

        @functools.wraps(log)
        def log_unless_muted(accelerator: Any, *args: Any, **kwargs: Any) -> None:
            if not (self._loop.is_resizable and self._loop.is_muted):
                log(accelerator, *args, **kwargs)

        kind.init_trackers, kind.log = init_trackers, log_unless_muted

    def attach(self, accelerator: weakref.ref[Any]) -> None:
        """Hand over what this Accelerator has begun."""
        self._accelerator = accelerator
        self._loop.captured.part(lambda: self)
        self._loop.on_arrival(lambda _: self._take_place())

    def tell(self) -> None:
        """Tell the others what rank 0 has begun. All workers are at the same call."""
        accelerator = self._accelerator()
        if accelerator is None or not accelerator.log_with or not self._loop.is_resizable:
            return
        told = [self._begun]
        dist.broadcast_object_list(told, src=0)
        if not accelerator.is_main_process:
            self._begun = told[0]

    def own(self) -> Any:
        """See StatePart.own."""
        return self._begun

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        self._begun = theirs

    def _take_place(self) -> None:
        """Begin or end this process's trackers, if it has become rank 0, or is so no more."""
        accelerator = self._accelerator()
        if accelerator is None or self._begun is None:
            return
        if accelerator.is_main_process and not accelerator.trackers:
            with trackers.going_on_with(self._begun.run):
                self._init(accelerator, self._begun.project, None, self._begun.options)
        elif accelerator.trackers and not accelerator.is_main_process:
            for tracker in accelerator.trackers:
                tracker.finish()
            accelerator.trackers.clear()
