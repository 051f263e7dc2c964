"""Parses the GPUs that a running job holds, from `scontrol --details show job --oneliner`. Pure."""

from __future__ import annotations

import re

from flexo.clusters.slurm.hostlist import BadHostlist, expand

_ON_NODES = re.compile(r"(?:^|\s)Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^,()]*)?\(IDX:(\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*)\)")
_MOST = 100_000
"""More GPUs than one entry of any job has."""


def held_gpus(text: str) -> frozenset[tuple[str, int]]:
    """The node and the number there of each GPU: `Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a:2(IDX:0-1)`.

    Empty if the job holds none, or runs no longer. A user can write the same form into the job's name. So the
    caller compares the number of GPUs with that of the job's record: forged ones come on top. What is no
    list of nodes, or names more GPUs than there are, is left out.
    """
    found: set[tuple[str, int]] = set()
    for nodes, devices in _ON_NODES.findall(text):
        numbers = [number for listed in _GPUS.findall(devices) for number in _numbers(listed)]
        names = _nodes(nodes) if numbers else ()
        if len(names) * len(numbers) <= _MOST:
            found.update((node, number) for node in names for number in numbers)
    return frozenset(found)


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except BadHostlist:
        return ()


def _numbers(text: str) -> list[int]:
    """`"0,2-3"` -> [0, 2, 3]."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
