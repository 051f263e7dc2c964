"""The outputs that a page shows, and the shape in which two runs agree: no numbers, places or times."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^( *)```text\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SESSION = re.compile(r"^<!-- compared by \S+ -->\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_NODES = re.compile(r"\bt\[?\d[\d,\-\]]*(?:\+\d+)?(?:,? t\[?\d[\d,\-\]]*(?:\+\d+)?)*")
_ADDRESSES = re.compile(r"\b(?:ctl\d|\d+(?:\.\d+){3}):\d+\b")
_DURATIONS = re.compile(r"\bfor \d+(?:\.\d+)? (?:s|min|h)\b")
_NUMBERS = re.compile(r"\d+(?:[.:T-]\d+)*")


def shape(text: str) -> list[str]:
    """The lines of an output without what differs from run to run."""
    return [_shape_of(line) for line in text.splitlines() if line.strip()]


def _shape_of(line: str) -> str:
    for varies, name in (
        (_ADDRESSES, "ADDRESS"),
        (_DURATIONS, "for N s"),
        (_NODES, "NODES"),
        (_NUMBERS, "N"),
    ):
        line = varies.sub(name, line)
    return re.sub(r"\s+", " ", line).strip()


def shown(page: str) -> list[list[str]]:
    """The shapes of the outputs on a page of docs/, in their order."""
    return [shape(text) for _, text in _BLOCK.findall((ROOT / "docs" / page).read_text())]


def sessions(page: str) -> list[list[tuple[str, list[str]]]]:
    """The sessions on a page of docs/ that tests compare: their commands with their outputs' shapes."""
    blocks = _SESSION.findall((ROOT / "docs" / page).read_text())
    return [[(command, shape(output)) for command, output in _TYPED.findall(block)] for block in blocks]
