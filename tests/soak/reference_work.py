"""A fixed piece of Python work: how much CPU time it takes tells how fast the machine is at the moment.

A virtual machine's cores are not equally fast all the time, and CPU time measures what a slow core takes, not
what a program does. So flexod's CPU time is compared with that of this work, done beside it.
"""

from __future__ import annotations

import json
import re
import subprocess
import time

_NODES = 120
_LISTING = "\n".join(
    f"node{n:03} idle 2 gpu:h100:{n % 8} 2026-01-01T00:{n % 60:02}:00" for n in range(_NODES)
)
_ROW = re.compile(r"^(\S+) (\S+) (\d+) gpu:(\w+):(\d+) (\S+)$", re.MULTILINE)
_COMMAND = ("cat", "/dev/null")


def spent_s() -> float:
    """CPU seconds of this thread for one piece, which does the same kinds of things as a cycle of flexod.

    It starts two commands, hears their ends and reads a listing, each once: a piece that repeats itself finds
    everything in the caches, and a cycle does not.
    """
    began = time.thread_time()
    for _ in range(2):
        subprocess.run(_COMMAND, check=True, stdout=subprocess.PIPE)
    _read()
    return time.thread_time() - began


def _read() -> int:
    """What a cycle does, too: it reads a listing, keeps objects by name, sorts and writes them."""
    nodes = {
        name: {"state": state, "cores": int(cores), "type": kind, "gpus": int(gpus), "since": since}
        for name, state, cores, kind, gpus, since in _ROW.findall(_LISTING)
    }
    order = sorted(nodes, key=lambda name: (nodes[name]["gpus"], nodes[name]["since"], name))
    document = json.dumps([{"name": name, **nodes[name]} for name in order])
    return sum(int(row["gpus"]) for row in json.loads(document))
