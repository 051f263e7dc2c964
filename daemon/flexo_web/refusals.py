"""The log of what flexo-web refuses. Whoever is refused again and again cannot fill it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

_BURST: Final = 20.0
"""The most lines at once; afterwards there is one line a second."""
_log = logging.getLogger("flexo_web")


class RefusalLog:
    """Writes a line for each refusal, while there are not too many. The next line counts the others."""

    def __init__(
        self, write: Callable[[str], None] = _log.warning, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._allowed = _BURST
        self._counted_at = clock()
        self._left_out = 0

    def note(self, why: str) -> None:
        """Log one refusal. `why`: one sentence without characters that others chose."""
        now = self._clock()
        self._allowed = min(_BURST, self._allowed + now - self._counted_at)
        self._counted_at = now
        if self._allowed < 1:
            self._left_out += 1
            return
        self._allowed -= 1
        others = f" ({self._left_out} more refusals were not logged)" if self._left_out else ""
        self._left_out = 0
        self._write(f"refused: {why}{others}")
