"""Collectives under way, as the elastic group returns them: they raise nothing in a script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from horovod_elastic.core.c10d.sums import Sharing, Summing


class Done(dist.Work):  # type: ignore[misc]
    """A collective that is over."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: Any = None) -> bool:
        """Wait for its end."""
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        return True

    def is_success(self) -> bool:
        """Whether it is over without a failure."""
        return True

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future with the tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class ByAggregators(dist.Work):  # type: ignore[misc]
    """A collective that Aggregators make. `take`: puts the result into the tensors, once it is there."""

    def __init__(
        self, begun: Summing | Sharing, tensors: list[torch.Tensor], take: Callable[[], None]
    ) -> None:
        super().__init__()
        self._tensors = tensors
        self._take_result = take
        self._taken = threading.Event()
        self._error: RuntimeError | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        begun.then(self._take)

    def _take(self) -> None:
        try:
            with torch.no_grad():
                self._take_result()
        except RuntimeError as error:
            self._error = error
            self._taken.set()
            self._future.set_exception(error)
            return
        self._taken.set()
        self._future.set_result(self._tensors)

    def wait(self, timeout: Any = None) -> bool:
        """Wait for its end. Raises RuntimeError if it has failed."""
        self._taken.wait()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self._taken.is_set()

    def is_success(self) -> bool:
        """Whether it is over without a failure."""
        return self._taken.is_set() and self._error is None

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future with the tensors."""
        return self._future


class Guarded(dist.Work):  # type: ignore[misc]
    """A collective of the script whose failure the script does not hear of.

    `spoiled`: called after waiting for the work; why the work has failed without an error, or "".
    """

    def __init__(
        self, work: Any, failed: Callable[[RuntimeError], None], spoiled: Callable[[], str] = str
    ) -> None:
        super().__init__()
        self._work = work
        self._failed = failed
        self._spoiled = spoiled

    def wait(self, timeout: Any = None) -> bool:
        """Wait for its end."""
        try:
            if timeout is None:
                self._work.wait()
            else:
                self._work.wait(timeout)
        except RuntimeError as error:
            self._failed(error)
            return True
        if why := self._spoiled():
            self._failed(RuntimeError(why))
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Whether it is over without a failure."""
        return bool(self._work.is_success())

    def result(self) -> Any:
        """The tensors."""
        return self._work.result()

    def get_future(self) -> Any:
        """A future with the tensors."""

        def guarded(future: Any) -> Any:
            try:
                return future.value()
            except RuntimeError as error:
                self._failed(error)
                return None

        return self._work.get_future().then(guarded)


class Reducing(dist.Work):  # type: ignore[misc]
    """The reduction of gradients, for which DistributedDataParallel waits by its future."""

    def __init__(
        self, work: Any, failed: Callable[[list[torch.Tensor], object], None], tensors: list[torch.Tensor]
    ) -> None:
        super().__init__()
        self._work = work
        self._failed = failed
        self._tensors = tensors

    def wait(self, timeout: Any = None) -> bool:
        """Wait for its end."""
        try:
            self._work.wait()
        except RuntimeError as error:
            self._failed(self._tensors, error)
        return True

    def get_future(self) -> Any:
        """A future with the tensors."""
        return self._work.get_future().then(self._guarded)

    def _guarded(self, future: Any) -> list[torch.Tensor]:
        try:
            future.value()
        except RuntimeError as error:
            self._failed(self._tensors, error)
        return self._tensors
