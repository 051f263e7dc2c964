"""Ranges of workers, and of samples in a global batch."""

from __future__ import annotations

import re
from dataclasses import dataclass


class BadRange(ValueError):
    """The error for an impossible range, as of ``--elastic``; the message says why."""


@dataclass(frozen=True, slots=True)
class Range:
    """``MIN-MAX``, both at least 1 and included: workers of a job, or samples of a global batch."""

    min: int
    max: int

    @classmethod
    def parse(cls, text: str) -> Range:
        """Parse ``"2-8"`` into Range(2, 8). Raises BadRange for anything that ``--elastic`` refuses."""
        match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
        if match is None:
            raise BadRange(f"'{text}' is not a range MIN-MAX such as 2-8")
        low, high = int(match[1]), int(match[2])
        if low < 1:
            raise BadRange(f"'{text}': the minimum is 1")
        if high < low:
            raise BadRange(f"'{text}': the maximum is below the minimum")
        return cls(low, high)

    def clamp(self, value: int) -> int:
        """The member of the range nearest to `value`."""
        return max(self.min, min(self.max, value))

    def __str__(self) -> str:
        return f"{self.min}-{self.max}"
