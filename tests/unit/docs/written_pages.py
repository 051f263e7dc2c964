"""The pages that people wrote, as tests read them: by their path in the repository, and in pieces of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = (
    "README.md",
    "slurm_plugin/README.md",
    *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")),
)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^\n((?:^ {4,}\S.*\n)(?:^ {4,}.*\n|^\n)*)", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Code:
    """A piece of code on a page."""

    page: str
    language: str
    """Of the fence; "indented", or "span" for one within a sentence."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.strip().splitlines()[0][:60]}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def pieces_of_code() -> Iterator[Code]:
    for page in PAGES:
        text = text_of(page)
        for match in _FENCE.finditer(text):
            yield Code(page, match[2], _unindented(match[3], match[1]))
        rest = _FENCE.sub("", text)
        for match in _INDENTED.finditer(rest):
            lines = match[1].rstrip().splitlines()
            margin = min((re.match(" *", line)[0] for line in lines if line.strip()), key=len)
            yield Code(page, "indented", _unindented("\n".join(lines) + "\n", margin))
        for match in _SPAN.finditer(_INDENTED.sub("\n", rest)):
            yield Code(page, "span", match[1])


def _unindented(text: str, margin: str) -> str:
    return re.sub(rf"^{margin}", "", text, flags=re.MULTILINE)
