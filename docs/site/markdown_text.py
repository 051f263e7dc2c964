"""How text that was not written as Markdown gets into Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"[\\*\[\]_]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", "|": "&#124;"})


def code(text: str) -> str:
    """`text` in a code span, where a vertical bar ends no cell of a table."""
    return f"`{text}`" if text else ""


def escaped(text: str) -> str:
    """`text` as it is, but for code spans, which stay."""
    spans = text.split("`")
    if len(spans) % 2 == 0:  # a lone backtick is no code span
        return _plain(text).replace("`", r"\`")
    return "`".join(span if i % 2 else _plain(span) for i, span in enumerate(spans))


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text.translate(_ENTITIES))


def cell(text: str) -> str:
    """`text` in one line, for a table."""
    return " ".join(escaped(text).split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown already."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
