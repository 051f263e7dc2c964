"""Lists of seeds on the command line: `1-20,25`. Pure."""

from __future__ import annotations

import argparse
import re


def parse(text: str) -> tuple[int, ...]:
    """The seeds in order. Raises argparse.ArgumentTypeError, naming what is allowed."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first > 10_000:
            raise argparse.ArgumentTypeError(
                f"'{text}': seeds and ranges of seeds are allowed, as in 1-20,25"
            )
        seeds += range(first, last + 1)
    return tuple(dict.fromkeys(seeds))
