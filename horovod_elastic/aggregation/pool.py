"""A pool's Aggregator: a process that sums for several jobs, which flexod assigns to it.

It runs as flexod's account, on one CPU core. It holds sums only, never a model, and no memory of a job's.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import threading
import time

import psutil

from flexo_protos.aggregation_token import KEY_BYTES
from flexo_protos.v1 import aggregators_pb2
from horovod_elastic import network, open_files
from horovod_elastic.aggregation.doors import PoolDoor
from horovod_elastic.aggregation.flexod_link import FlexodLink
from horovod_elastic.aggregation.server import Server
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.release import release
from horovod_elastic.trace import say

LEAVES_WITHIN_S = 20.0
"""Seconds for jobs to go elsewhere. Clusters often leave 30 s after SIGTERM."""
PAUSE_S = 0.2
LEAST_MEMORY = 1 << 26
_MIB = 1 << 20
_JOB_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


def main(arguments: list[str] | None, job_id: str) -> int:
    """Serve until SIGTERM or flexod ends it, and the jobs have gone elsewhere. Returns the exit code.

    `job_id`: the cluster's job that this process runs in; "" for none.
    """
    asked = make_parser().parse_args(arguments)
    flexod = asked.flexod or daemon_address()
    if not flexod:
        say("no flexod is configured: set FLEXO_DAEMON, or give --flexod=HOST:PORT")
        return 2
    open_files.raise_limit()
    key = secrets.token_bytes(KEY_BYTES)
    door = PoolDoor(key)
    try:
        host = asked.host or network.own_address(os.uname().nodename, flexod.partition(":")[0])
        server = Server("", host, asked.port, door)
    except (OSError, network.NoAddress) as error:
        say(f"the pool's Aggregator cannot begin: {error}")
        return 1
    serving = threading.Thread(target=server.serve, daemon=True)
    serving.start()
    hello = aggregators_pb2.AggregatorHello(
        host=host,
        port=server.port,
        memory_bytes=(asked.memory_mib or _half_of_the_memory()) * _MIB,
        network_bytes_per_s=round(asked.network_gbit * 1e9 / 8),
        cores=1,
        token_key=key,
        slurm_job_id=job_number(job_id),
        flexo_version=release(),
    )
    link = FlexodLink(flexod, hello, server, door)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: link.leave())
    while not link.is_leaving:
        if not serving.is_alive():  # flexod must not assign jobs to a process that hears nobody
            say("the pool's Aggregator ends: it accepts no connections any more")
            return 1
        time.sleep(PAUSE_S)
    link.wait_until_told()
    deadline = time.monotonic() + LEAVES_WITHIN_S
    while server.used() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    link.close()
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line of `flexo aggregator`."""
    parser = argparse.ArgumentParser(prog="flexo aggregator", description=__doc__.partition("\n")[0])
    parser.add_argument("--flexod", metavar="HOST:PORT", help="default: $FLEXO_DAEMON, or flexo.toml's")
    parser.add_argument("--host", help="this node's address for jobs (default: the one towards flexod)")
    parser.add_argument("--port", type=int, default=0, help="the port for jobs (default: any)")
    parser.add_argument(
        "--memory-mib",
        metavar="MIB",
        type=_memory_mib,
        help="memory for the gradients of all jobs (default: half of what is free)",
    )
    parser.add_argument(
        "--network-gbit",
        metavar="GBIT",
        type=float,
        default=10.0,
        help="bandwidth of the network interface in each direction, in Gbit/s (default: %(default)g)",
    )
    return parser


def job_number(job_id: str) -> int:
    """A job's id as a number; 0 if it is none."""
    return int(job_id) if _JOB_ID.fullmatch(job_id) else 0


def _memory_mib(text: str) -> int:
    if not text.isdecimal() or int(text) * _MIB < LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"'{text}': a number of MiB, {LEAST_MEMORY // _MIB} or more")
    return int(text)


def _half_of_the_memory() -> int:
    return max(LEAST_MEMORY, psutil.virtual_memory().available // 2) // _MIB
