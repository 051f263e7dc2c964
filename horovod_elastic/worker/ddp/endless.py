"""`itertools.cycle` over a DataLoader, in a script that may be resized: it begins the loader anew.

Python's own cycle keeps all batches of the first pass, and never calls the loader again. Then workers could
neither join nor leave, and those that have lost a peer would never find the place where they recover. The
order of a DistributedSampler is the same in each pass unless the script says another epoch, so a new pass
gives the samples that the kept batches have.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any


class cycle(itertools.cycle):  # type: ignore[type-arg]  # noqa: N801  it has the name of Python's own
    """See itertools.cycle."""

    def __new__(cls, iterable: Iterable[Any]) -> Any:
        """See the module."""
        return _passes(iterable) if _is_loader(iterable) else super().__new__(cls, iterable)


def install() -> None:
    """Put it in the place of Python's own, before a script can import that."""
    itertools.cycle = cycle  # type: ignore[misc]


def _is_loader(iterable: Iterable[Any]) -> bool:
    data = sys.modules.get("torch.utils.data")
    if data is None or not isinstance(iterable, data.DataLoader):
        return False
    from horovod_elastic.worker.ddp import training_loop

    return training_loop.current().is_resizable


def _passes(loader: Iterable[Any]) -> Iterator[Any]:
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
