"""The layer's hooks in PyTorch, all of them public: around modules, gradients and optimizers' steps."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from horovod_elastic.sharing.environment import Role, Sharing
from horovod_elastic.sharing.layer import place, torchs_own, universal
from horovod_elastic.sharing.layer.gate import Gate
from horovod_elastic.sharing.layer.guarantee import Marks, OnAGpu, OnTheCpu
from horovod_elastic.sharing.layer.link import Link
from horovod_elastic.sharing.layer.memory import Memory
from horovod_elastic.sharing.pages import GatePage, GuaranteePage, OpportunisticPage, Page

UNIVERSAL_BLOCKS = (64 << 20,) * 8
"""Blocks that are pinned ahead for allocations that the GPU has no room for."""
LOOK_S = 0.5
CPU_OF_A_USER_S = 5.0
"""On a pretended device, a process that has used this much CPU time without a hook uses the device."""


def install(sharing: Sharing) -> None:
    """Hook this process. PyTorch has just been imported."""
    layer = Opportunistic(sharing) if sharing.role is Role.OPPORTUNISTIC else Guarantee(sharing)
    layer.install()
    os.register_at_fork(after_in_child=layer.leave)  # workers of loaders are no jobs


class _Layer:
    """What both roles have: handles of hooks, to be removed."""

    _link: Link

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def leave(self) -> None:
        """Be no job any more, in a forked child."""
        self.remove()
        self._link.close()

    def remove(self) -> None:
        """Remove all hooks."""
        while self._handles:
            self._handles.pop().remove()


class Guarantee(_Layer):
    """The layer of a guarantee job. While it shares with nobody, a step reads one flag."""

    def __init__(self, sharing: Sharing) -> None:
        super().__init__()
        self.page = GuaranteePage(Page.make("guarantee"))
        self._order: GatePage | None = None
        self._link = Link(sharing, self.page.page, self.ordered, lambda _: None, self._measure)
        self._place = place.here()
        self._marks: Marks | None = None
        self._first: Any = None

    def install(self) -> None:
        """Introduce the job at its first module, step or use of CUDA."""
        self._handles.append(optimizers.register_optimizer_step_post_hook(self._after_step))
        self._first = modules.register_module_forward_pre_hook(self._at_first_module)
        torchs_own.when_cuda_begins(self._link.start)

    def ordered(self, order: GatePage | None) -> None:
        """The coordinator has given orders, or is gone."""
        if order is not None:
            self._order = order  # one that is gone keeps its last word: marks cost little, none would leak

    def _measure(self) -> None:
        """Tell how much memory the job holds, every few seconds: steps of an unshared job do not."""
        if self._marks is not None:
            return
        if self._place.kind != "cuda" and torchs_own.cuda_is_in_use():
            self._place = place.here()
        self.page.page.words[GuaranteePage.MEMORY] = self._place.used()
        self.page.page.words[GuaranteePage.PEAK] = self._place.peak()

    def _at_first_module(self, module: Any, arguments: Any) -> None:
        if torch.compiler.is_compiling() or is_helper():
            return
        self._link.start()
        self._first.remove()

    def _after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        order = self._order
        if order is None:
            if not is_helper():
                self._link.start()
        elif order.page.words[GatePage.SHARED]:
            if self._marks is None:
                self._mark()
            self._marks.after_step(optimizer)  # type: ignore[union-attr]  # _mark made it
        elif self._marks is not None:
            self._unmark()

    def _mark(self) -> None:
        cuda = torchs_own.cuda_is_in_use()
        if cuda:
            _universal_memory()
        self._place = place.here()
        marks = Marks(self.page, self._place, OnAGpu() if cuda else OnTheCpu())
        self._marks = marks

        def before(module: Any, arguments: Any) -> None:
            if not torch.compiler.is_compiling():
                marks.before_module(module)

        def after(module: Any, arguments: Any, result: Any) -> None:
            if not torch.compiler.is_compiling():
                marks.after_module(module)

        self._around = [
            modules.register_module_forward_pre_hook(before),
            modules.register_module_forward_hook(after),
        ]
        self._handles += self._around

    def _unmark(self) -> None:
        assert self._marks is not None
        self._marks.stop()
        self._marks = None
        for handle in self._around:
            handle.remove()
            self._handles.remove(handle)


class Opportunistic(_Layer):
    """The layer of an opportunistic job: the gate at each boundary of modules, forward and backward."""

    def __init__(self, sharing: Sharing) -> None:
        super().__init__()
        self.page = OpportunisticPage(Page.make("opportunistic"))
        self._link = Link(sharing, self.page.page, self.ordered, self._met)
        self._gate: Gate | None = None
        self._known_order: GatePage | None = None
        self._known_guarantee: GuaranteePage | None = None

    @property
    def gate(self) -> Gate:
        """The gate; made at the first use, when the device is known."""
        if self._gate is None:
            self._gate = Gate(self.page, Memory(place.here()), self.begin)
            self._gate.order, self._gate.guarantee = self._known_order, self._known_guarantee
        return self._gate

    def install(self) -> None:
        """Hold the job wherever PyTorch lets us."""
        self._handles += [
            modules.register_module_forward_pre_hook(self._before_module),
            modules.register_module_forward_hook(self._after_module),
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        torchs_own.when_cuda_begins(self._at_cuda)
        threading.Thread(target=self._look_for_use, name="flexo-use", daemon=True).start()

    def begin(self) -> None:
        """This process uses the GPU: it has to introduce itself, and its supervisor watches it from now
        on.
        """
        self.page.page.words[OpportunisticPage.STARTED] = 1
        self._link.start()

    def _at_cuda(self) -> None:
        """Before the first allocation: stand at the gate, then work with what is allowed."""
        _universal_memory()  # before there is a limit: it is no memory of the GPU, but PyTorch counts it so
        self.gate.boundary()

    def ordered(self, order: GatePage | None) -> None:
        """The coordinator has given orders, or is gone."""
        self._known_order = order
        if self._gate is not None:
            self._gate.order = order

    def _met(self, guarantee: GuaranteePage | None) -> None:
        self._known_guarantee = guarantee
        if self._gate is not None:
            self._gate.guarantee = guarantee

    def _before_module(self, module: Any, arguments: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if type(module).__name__ == "OptimizedModule":
            self.gate.memory.may_move = False  # compiled code may have addresses in it
        self._hold()

    def _after_module(self, module: Any, arguments: Any, result: Any) -> None:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            for tensor in _tensors(result):
                if tensor.grad_fn is not None:
                    tensor.register_hook(self._in_backward)

    def _in_backward(self, gradient: Any) -> None:
        if not torch.compiler.is_compiling():
            self._hold()

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._hold()

    def _after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if not is_helper():
            self.gate.step()

    def _hold(self) -> None:
        if not is_helper():
            self.gate.boundary()

    def _look_for_use(self) -> None:
        """Notice a script that uses the device and reaches no hook."""
        began = time.process_time()
        while not self.page.started:
            time.sleep(LOOK_S)
            if is_helper():
                continue
            if torchs_own.cuda_is_in_use() or (
                time.process_time() - began > CPU_OF_A_USER_S and not _has_cuda()
            ):
                self.begin()


def is_helper() -> bool:
    """Whether this process only helps another one: a loader's worker, whose transforms may be modules,
    too.
    """
    return multiprocessing.parent_process() is not None and not torchs_own.cuda_is_in_use()


def _has_cuda() -> bool:
    return Path("/dev/nvidiactl").exists()


def _tensors(result: Any) -> list[Any]:
    """The tensors of a module's result, one level deep."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = result.values()
    elif not isinstance(result, tuple | list):
        return []
    return [each for each in result if isinstance(each, torch.Tensor)]


def _universal_memory() -> None:
    """Have allocations that fail go to the host's memory. A job without it can be told that the GPU is
    full.
    """
    if torchs_own.cuda_is_in_use():
        with contextlib.suppress(universal.NoUniversalMemory, RuntimeError):
            universal.hold(UNIVERSAL_BLOCKS)
