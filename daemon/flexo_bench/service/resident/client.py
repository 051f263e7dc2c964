"""A worker's end of its parameter servers: it pushes gradients, and other threads pull parameters."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flexo.aggregation.demand import LARGEST_TASK
from flexo_bench.service.resident import frames
from flexo_bench.service.resident.frames import Frame, Introduction, Kind
from flexo_bench.service.resident.partitions import partitions_of
from horovod_elastic import sockets

WITHIN_S = 60.0
"""Seconds within which servers answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    host: str
    port: int


class ServersFailed(RuntimeError):
    """The parameter servers do not answer as they should; the message says which."""


class ResidentClient:
    """The client of one worker.

    `parameters`: the model's, float32 and contiguous; those of rank 0 are the first ones. `holders`: per
    partition, the server that holds it at first, as a place in `servers`. `largest`: bytes of the largest
    partition. All workers of a job bring the same.
    """

    def __init__(
        self,
        job: Introduction,
        parameters: Sequence[torch.Tensor],
        servers: Sequence[Address],
        holders: Sequence[int],
        largest: int = LARGEST_TASK,
    ) -> None:
        self._job = job.job
        self._step = 0
        self._partitions = partitions_of([tuple(each.shape) for each in parameters], largest)
        self._into = [self._part(parameters, key) for key in range(len(self._partitions))]
        self.holders = list(holders)
        """Per partition: the server that holds it now."""
        self._lock = threading.Lock()
        self._missing: set[int] = set()
        self._whole = threading.Event()
        self._failed = ""
        self._connections = [frames.dial(each.host, each.port) for each in servers]
        for number, connection in enumerate(self._connections):
            frames.send_words(connection, Frame(Kind.HELLO, self._job), job)
            threading.Thread(target=self._pull, args=(number, connection), daemon=True).start()
        if job.rank == 0:
            for key, holder in enumerate(self.holders):
                first = frames.memory_of(self._into[key])
                frames.send(self._connections[holder], Frame(Kind.INIT, self._job, key), first)

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Have the servers update the parameters with the mean of all workers' gradients.

        `gradients`: of the parameters, in their order. The parameters are the new ones afterwards. Raises
        ServersFailed, and OSError if a server is gone.
        """
        self._step += 1
        with self._lock:
            self._missing = set(range(len(self._partitions)))
            self._whole.clear()
        for key in reversed(range(len(self._partitions))):  # as a backward pass makes them
            pushed = frames.memory_of(self._part(gradients, key))
            frame = Frame(Kind.PUSH, self._job, key, step=self._step)
            frames.send(self._connections[self.holders[key]], frame, pushed)
        if not self._whole.wait(WITHIN_S) or self._failed:
            raise ServersFailed(
                self._failed or f"{len(self._missing)} partitions are not there in {WITHIN_S} s"
            )

    def close(self) -> None:
        """Leave."""
        for connection in self._connections:
            sockets.close(connection)

    def _part(self, tensors: Sequence[torch.Tensor], key: int) -> torch.Tensor:
        part = self._partitions[key]
        return tensors[part.tensor].detach().view(-1)[part.first : part.first + part.count]

    def _pull(self, number: int, connection: socket.socket) -> None:
        try:
            while True:
                frame = frames.receive(connection)
                frames.receive_tensor(connection, frame, self._into[frame.key])
                self.holders[frame.key] = frame.server
                with self._lock:
                    self._missing.discard(frame.key)
                    if not self._missing:
                        self._whole.set()
        except (OSError, EOFError, ValueError) as error:
            self._failed = f"parameter server {number} is gone: {error}"
            self._whole.set()
