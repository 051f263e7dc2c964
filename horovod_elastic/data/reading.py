"""Readers of samples: at once, ahead in a thread, or ahead in processes of PyTorch's DataLoader."""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate, get_worker_info

from horovod_elastic.data.containers import pinned
from horovod_elastic.data.device import DeviceAhead, OnDevice

Batch = Any
_T = TypeVar("_T")
Collate = Callable[[list[Any]], Batch]
_PARENT_CHECK_S = 5.0


class Fetch:
    """Makes a collated mini-batch from indices, in the shortest way that the dataset offers."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self._dataset = dataset
        self._collate = default_collate if collate is None else collate
        self.is_immediate = type(dataset) is TensorDataset and collate is None
        """Whether all samples are in memory, so that nothing is gained by reading them ahead."""

    def __call__(self, indices: torch.Tensor) -> Batch:
        """The mini-batch of these samples, in this order."""
        if self.is_immediate:
            return [tensor[indices] for tensor in self._dataset.tensors]
        numbers: list[int] = indices.tolist()
        if hasattr(self._dataset, "__getitems__"):
            return self._collate(self._dataset.__getitems__(numbers))
        return self._collate([self._dataset[number] for number in numbers])


class Reader(Protocol):
    """Reads mini-batches in the order in which they are requested."""

    def read(self, indices: torch.Tensor) -> Future[Batch]:
        """Begin to read these samples. The future raises what the dataset raised."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


class InlineReader:
    """Reads at once, in the calling thread."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def read(self, indices: torch.Tensor) -> Future[Batch]:
        """Read these samples now."""
        done: Future[Batch] = Future()
        done.set_result(self._fetch(indices))
        return done

    def close(self) -> None:
        """Do nothing, because nothing is open."""


class InThread:
    """Reads in one thread of this process."""

    def __init__(self, fetch: Fetch, *, pin: bool) -> None:
        self._fetch = fetch
        self._pin = pin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flexo-data")

    def read(self, indices: torch.Tensor) -> Future[Batch]:
        """Begin to read these samples, after all earlier requests."""
        return self._thread.submit(self._read, indices)

    def _read(self, indices: torch.Tensor) -> Batch:
        batch = self._fetch(indices)
        return pinned(batch) if self._pin else batch

    def close(self) -> None:
        """Finish the read under way, and cancel all others."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class InProcesses:
    """Reads in the processes of a DataLoader that never ends: it waits until it is told what to read.

    So DataLoader itself starts the processes, moves tensors through shared memory, pins tensors and ends. One
    set of processes serves all epochs and survives all resizes. Process i modulo their number reads the i-th
    requested mini-batch; DataLoader collects mini-batches in that order.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        processes: int,
        pin: bool,
        context: str | None,
        worker_init: Callable[[int], None] | None,
    ) -> None:
        pipes = [torch.multiprocessing.get_context(context).Pipe(duplex=False) for _ in range(processes)]
        self._wishes = [write for _, write in pipes]
        self._asked = 0
        self._promised: deque[Future[Batch]] = deque()
        self._promise = threading.Condition()
        self._closed = False
        loader = DataLoader(
            _ToldWhatToRead(fetch, [read for read, _ in pipes]),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=processes,
            pin_memory=pin,
            multiprocessing_context=context,
            worker_init_fn=worker_init,
            generator=torch.Generator(),  # a separate one: the script's random numbers stay as they are
        )
        batches = iter(loader)
        for read, _ in pipes:
            read.close()
        threading.Thread(target=self._collect, args=(batches,), name="flexo-data", daemon=True).start()

    def read(self, indices: torch.Tensor) -> Future[Batch]:
        """Send the indices to the process whose turn it is."""
        future: Future[Batch] = Future()
        with self._promise:
            self._promised.append(future)
            self._promise.notify()
        self._wishes[self._asked % len(self._wishes)].send(indices.tolist())
        self._asked += 1
        return future

    def _collect(self, batches: Iterator[Batch]) -> None:
        while True:
            with self._promise:
                self._promise.wait_for(lambda: self._promised or self._closed)
                if self._closed:
                    break
                future = self._promised.popleft()
            try:
                batch = next(batches, _Failed("the processes that read have ended"))
            except Exception as error:  # DataLoader's own error: a process was killed, for example
                batch = _Failed(str(error))
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(batch, _Failed):
                future.set_exception(RuntimeError(f"reading samples failed:\n{batch.text}"))
            else:
                future.set_result(batch)

    def close(self) -> None:
        """Tell the processes to end, and cancel what they were to read: somebody may wait for it."""
        with self._promise:
            self._closed = True
            promised, self._promised = self._promised, deque()
            self._promise.notify()
        for future in promised:
            future.cancel()
        for wish in self._wishes:
            with contextlib.suppress(OSError):  # that process has ended already
                wish.send(None)
            wish.close()


@dataclass(frozen=True)
class _Failed:
    """An exception of the dataset, as text, because not every exception can travel between processes."""

    text: str


class _ToldWhatToRead(IterableDataset):  # type: ignore[misc]  # PyTorch is not checked
    """The dataset in DataLoader's processes. It reads the samples whose indices arrive in a pipe."""

    def __init__(self, fetch: Fetch, wishes: Sequence[Connection]) -> None:
        self._fetch = fetch
        self._wishes = wishes

    def __iter__(self) -> Iterator[Batch | _Failed]:
        info = get_worker_info()
        assert info is not None
        parent = os.getppid()
        while (indices := _next_wish(self._wishes[info.id], parent)) is not None:
            try:
                yield self._fetch(torch.tensor(indices, dtype=torch.int64))
            except Exception:
                yield _Failed(traceback.format_exc())


def _next_wish(wishes: Connection, parent: int) -> list[int] | None:
    """The indices of the samples to read next; None: the process must end."""
    # The processes hold each other's pipes open, so the parent's death is not seen in a pipe.
    while not wishes.poll(_PARENT_CHECK_S):
        if os.getppid() != parent:
            return None
    try:
        wish: list[int] | None = wishes.recv()
    except EOFError:
        return None
    return wish


def _as_it_is(batch: Batch) -> Batch:
    return batch


class ReadAhead:
    """The buffers between reading and training: mini-batches read or being read, by keys for their samples.

    Amoeba, section 5.3: a ping-pong buffer of pinned memory between a producer and the consumer, and
    mini-batches that are on the GPU before they are trained on.
    """

    def __init__(self, reader: Reader, device: DeviceAhead | None = None) -> None:
        """`device`: copies the first of the mini-batches that are read ahead to the worker's GPU."""
        self._reader = reader
        self._device = device
        self._read: dict[Any, Future[Batch]] = {}
        self._copies: dict[Any, Future[OnDevice]] = {}
        self._ends = [weakref.finalize(self, each.close) for each in (reader, device) if each is not None]

    def take(self, wanted: Any, upcoming: Sequence[Any], indices: Callable[[Any], torch.Tensor]) -> Batch:
        """The mini-batch `wanted`. Meanwhile, the reader reads the `upcoming` mini-batches.

        `indices`: gives the indices of a mini-batch's samples. Mini-batches that were read ahead and are not
        upcoming any more are thrown away, on the device, too.
        """
        keys = (wanted, *upcoming)
        self._copies, self._read = _kept(self._copies, keys), _kept(self._read, keys)
        for key in keys:
            if key not in self._read:
                self._read[key] = self._reader.read(indices(key))
        if self._device is None:
            return self._read.pop(wanted).result()
        for key in keys[: 1 + self._device.most]:
            if key not in self._copies:
                self._copies[key] = self._device.copy(self._read[key])
        del self._read[wanted]
        return self._device.receive(self._copies.pop(wanted).result())


def _kept(futures: dict[Any, Future[_T]], keys: Sequence[Any]) -> dict[Any, Future[_T]]:
    """The futures of these keys. All others are cancelled."""
    kept = {key: futures.pop(key) for key in keys if key in futures}
    for useless in futures.values():
        useless.cancel()
    return kept
