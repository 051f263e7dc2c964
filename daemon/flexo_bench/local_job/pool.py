"""A pool's Aggregators without flexod: python -m flexo_bench.local_job.pool FOLDER KEY.

Each one writes its port to its folder. Tokens are signed with its key, which is hexadecimal.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from flexo_protos import aggregation_token
from flexo_protos.aggregation_token import AggregationToken
from horovod_elastic.aggregation.control import AssignedAggregator
from horovod_elastic.aggregation.doors import PoolDoor
from horovod_elastic.aggregation.place import write_file
from horovod_elastic.aggregation.server import Server

HOST = "127.0.0.1"
QUOTA = 1 << 34
"""Bytes of memory that a job's sums may take."""
_LASTS_S, _STARTS_WITHIN_S = 3600, 60.0


@contextlib.contextmanager
def pool_aggregator(
    folder: Path, job: str, user: str = "somebody"
) -> Iterator[tuple[subprocess.Popen[bytes], AssignedAggregator]]:
    """A pool's Aggregator with a token for the job. Its process has ended afterwards.

    Raises TimeoutError if it does not start.
    """
    folder.mkdir(parents=True)
    key, port = secrets.token_bytes(aggregation_token.KEY_BYTES), folder / "port"
    command = [sys.executable, "-m", "flexo_bench.local_job.pool", str(folder), key.hex()]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + _STARTS_WITHIN_S
        while not port.exists():
            if process.poll() is not None or time.monotonic() > limit:
                raise TimeoutError(f"the pool's Aggregator in {folder} does not start")
            time.sleep(0.05)
        content = AggregationToken(job, user, QUOTA, int(time.time()) + _LASTS_S)
        token = aggregation_token.sign(content, key)
        yield process, AssignedAggregator(HOST, int(port.read_text()), token)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Be a pool's Aggregator."""
    folder, key = sys.argv[1:]
    server = Server("", HOST, 0, PoolDoor(bytes.fromhex(key)))
    write_file(Path(folder, "port"), str(server.port))
    server.serve()


if __name__ == "__main__":
    main()
