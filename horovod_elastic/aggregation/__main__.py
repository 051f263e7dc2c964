"""An Aggregator's process. It serves one job, on one node, and ends with the supervisor that started it.

A node has two of them. The second one has loaded everything, and waits for the first one's death.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from horovod_elastic import open_files
from horovod_elastic.aggregation import control, place
from horovod_elastic.aggregation.control import AggregatorUsage
from horovod_elastic.aggregation.doors import OwnDoor
from horovod_elastic.aggregation.place import AggregatorPlace
from horovod_elastic.aggregation.server import Server
from horovod_elastic.trace import say

TELL_S = 1.0


def main() -> int:
    """Serve until killed, once no other process serves in the folder."""
    parser = argparse.ArgumentParser(prog="python -m horovod_elastic.aggregation", description=__doc__)
    parser.add_argument("--folder", required=True, type=Path, help="where this node's workers find it")
    parser.add_argument("--host", required=True, help="this node's address for other nodes' Aggregators")
    parser.add_argument(
        "--no-workers", action="store_true", help="serve other nodes' Aggregators only: no worker is here"
    )
    asked = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # signals of a job are its workers' and its agent's
    open_files.raise_limit()  # every worker's memory of a key takes one
    path = place.socket_path(asked.folder)
    try:
        place.take(asked.folder)
        before = place.read(asked.folder)
        token = before.token if before is not None else place.new_token()
        path.unlink(missing_ok=True)
        local = "" if asked.no_workers else str(path)
        server = Server(local, asked.host, before.port if before is not None else 0, OwnDoor(token))
        place.write(asked.folder, AggregatorPlace(asked.host, server.port, token))
    except OSError as error:
        say(f"the Aggregator cannot open its doors in {asked.folder}: {error}")
        return 1
    if not asked.no_workers:
        threading.Thread(target=_keep_in_touch, args=(server, asked.folder), daemon=True).start()
    server.serve()
    return 0


def _keep_in_touch(server: Server, folder: Path) -> None:
    """Hear every second from the agent who is to sum, and tell it what the job's sums are if that changes."""
    told: AggregatorUsage | None = None
    while True:
        time.sleep(TELL_S)
        server.assigned(control.assignment(folder))
        used = server.usage()
        if used is not None and used != told:
            with contextlib.suppress(OSError):  # the folder is gone when the job ends
                control.tell_usage(folder, replace(used, cpu_s=time.process_time()))
            told = used


if __name__ == "__main__":
    sys.exit(main())
