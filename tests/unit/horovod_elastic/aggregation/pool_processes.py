"""Aggregators of a pool in processes of their own, and tokens for their jobs."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from summing_world import BOUND_S

from flexo_protos.aggregation_token import KEY_BYTES, AggregationToken, sign
from horovod_elastic.aggregation.plan import PlannedNode


@dataclass
class PoolProcess:
    """A pool's Aggregator in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    key: bytes

    def token(self, job: str = "17", quota: int = 1 << 30, lasts_s: float = 3600.0) -> str:
        return sign(AggregationToken(job, "somebody", quota, int(time.time() + lasts_s)), self.key)

    def planned(self, share: int = 1, **token: float) -> PlannedNode:
        text = self.token(**token)  # type: ignore[arg-type]
        return PlannedNode(f"pool {self.port}", (), "127.0.0.1", self.port, text, share)


@contextmanager
def pool(folder: Path, count: int) -> Iterator[list[PoolProcess]]:
    started = []
    try:
        for number in range(count):
            place, key = folder / f"pool{number}", secrets.token_bytes(KEY_BYTES)
            place.mkdir()
            command = [sys.executable, "-m", "flexo_bench.local_job.pool", str(place), key.hex()]
            process = subprocess.Popen(command)
            port = place / "port"
            wait_for(lambda port=port: port.exists() and port.read_text())  # type: ignore[misc]
            started.append(PoolProcess(process, int(port.read_text()), key))
        yield started
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()


def wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)
