"""The outputs that a page shows, and the shape in which two runs agree: no numbers, nodes or times."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^( *)```text\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_NODES = re.compile(r"\bt\[?\d[\d,\-\]]*(?:\+\d+)?(?:,? t\[?\d[\d,\-\]]*(?:\+\d+)?)*")
_NUMBERS = re.compile(r"\d+(?:[.:T-]\d+)*")


def shape(text: str) -> list[str]:
    """The lines of an output without what differs from run to run."""
    lines = (_NUMBERS.sub("N", _NODES.sub("NODES", line)) for line in text.splitlines() if line.strip())
    return [re.sub(r"\s+", " ", line).strip() for line in lines]


def shown(page: str) -> list[list[str]]:
    """The shapes of the outputs on a page of docs/, in their order."""
    return [shape(text) for _, text in _BLOCK.findall((ROOT / "docs" / page).read_text())]
