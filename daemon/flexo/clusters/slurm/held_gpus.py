"""Parses the GPUs that a running job holds, from `scontrol --details show job --oneliner`. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from flexo.clusters.slurm.hostlist import BadHostlist, expand_up_to

_ON_NODES = re.compile(r"(?:^|\s)Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^,()]*)?\(IDX:(\d{1,3}(?:-\d{1,3})?(?:,\d{1,3}(?:-\d{1,3})?)*)\)")


def held_gpus(text: str, nodes: Collection[str]) -> frozenset[tuple[str, int]]:
    """The node and the number there of each GPU: `Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a:2(IDX:0-1)`.

    `nodes`: the job's. Empty if the job holds none, or runs no longer. A user can write the same form into
    the job's name. So the caller compares the number of GPUs with that of the job's record: forged ones come
    on top. What is no list of these nodes is left out.
    """
    found: set[tuple[str, int]] = set()
    for listed, devices in _ON_NODES.findall(text):
        if names := _nodes(listed, nodes):
            numbers = [number for each in _GPUS.findall(devices) for number in _numbers(each)]
            found.update((node, number) for node in names for number in numbers)
    return frozenset(found)


def _nodes(listed: str, nodes: Collection[str]) -> tuple[str, ...]:
    try:
        names = expand_up_to(len(nodes), listed)
    except BadHostlist:
        return ()
    return names if set(names) <= set(nodes) else ()


def _numbers(text: str) -> list[int]:
    """`"0,2-3"` -> [0, 2, 3]."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
