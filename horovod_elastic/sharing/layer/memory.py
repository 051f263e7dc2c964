"""Keeps the opportunistic job's memory below its limit: trims its cache, then moves live tensors out,
and back.
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

from horovod_elastic.sharing import relocation
from horovod_elastic.sharing.layer.place import Place, Pretended
from horovod_elastic.sharing.relocation import HostBuffers, NoRoom, Relocated

KEPT_BUFFERS = 4 << 30
"""Bytes of pinned host memory that are kept between two moves."""


class Memory:
    """The memory of one process. `may_move`: whether live tensors may be moved out; the gate says so."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.may_move = True
        self._out: Relocated | None = None
        self._buffers = HostBuffers(KEPT_BUFFERS)

    @property
    def moved(self) -> int:
        """Bytes that are out."""
        return 0 if self._out is None else self._out.size

    def used(self) -> int:
        """Bytes that the process holds on the device."""
        return self.place.used()

    def obey(self, limit: int) -> bool:
        """Hold at most `limit` bytes. Returns whether the script may go on: whether all of its tensors
        are in.

        Raises nothing. Must be called from the only thread that computes.
        """
        self.place.limit(limit)
        if self._out is not None:
            return self._come_back(limit)
        if self.place.used() <= limit:
            return True
        self.place.trim()
        if self._counted() <= limit:
            return True
        if not self.may_move or _others_use_tensors():
            return False
        self.place.drain()
        self._out = relocation.move_out(self.place.kind, self._buffers)
        self.place.trim()
        return False

    def _come_back(self, limit: int) -> bool:
        out = self._out
        assert out is not None
        if self._counted() + out.size > limit:
            return False
        try:
            out.back()
        except NoRoom:
            return False
        self._out = None
        self._counted()
        return True

    def _counted(self) -> int:
        return self.place.count() if isinstance(self.place, Pretended) else self.place.used()


def _others_use_tensors() -> bool:
    """Whether collectives may use tensors in threads of their own. They would write to where a tensor was."""
    initialized = dist.is_available() and dist.is_initialized()
    return initialized or "FLEXO_AGENT" in os.environ or "horovod.torch" in sys.modules
