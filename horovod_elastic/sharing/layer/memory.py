"""Keeps the opportunistic job's memory below its limit: trims its cache, then moves live tensors out,
and back.
"""

from __future__ import annotations

import os
import sys
import time

import torch.distributed as dist

from horovod_elastic.sharing import relocation
from horovod_elastic.sharing.layer.place import Place, Pretended
from horovod_elastic.sharing.relocation import HostBuffers, NoRoom, Relocated

KEPT_BUFFERS = 4 << 30
"""Bytes of pinned host memory that are kept between two moves."""
VAIN_SHARE = 0.01
"""The share of the time that attempts to obey one limit may take. A job at its gate asks often."""


class Memory:
    """The memory of one process. `may_move`: whether live tensors may be moved out; the gate says so."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.may_move = True
        self._out: Relocated | None = None
        self._buffers = HostBuffers(KEPT_BUFFERS)
        self._tried: int | None = None
        """The limit that was tried to obey last, if not all tensors could stay in."""
        self._again_at = 0.0

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
        if self._out is None and self.place.used() <= limit:
            return True
        began = time.monotonic()
        if limit == self._tried and began < self._again_at:
            return False
        inside = self._make_room(limit) if self._out is None else self._come_back(limit)
        ended = time.monotonic()
        self._tried = None if inside else limit
        self._again_at = ended + (ended - began) / VAIN_SHARE
        return inside

    def _make_room(self, limit: int) -> bool:
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
        if out.size > limit or self._counted() + out.size > limit:
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
