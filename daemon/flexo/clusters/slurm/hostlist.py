"""Expands Slurm's short form for lists of nodes: `t[1-3,07-09],i1` in, names out.

flexo uses this code instead of ClusterShell's NodeSet. NodeSet sorts the names, and takes `&`, `!` and `^`
for operators. It expands a list of any length (10 million names: 20 s, 1.6 GiB). For an ordinary list it
needs up to thirty times as long.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

_MOST_NODES = 1_000_000
"""More than any cluster has: a list longer than this is not a list of its nodes."""


class BadHostlist(ValueError):
    """A text that is not a list of nodes; the message says which."""


@functools.lru_cache(maxsize=4096)
def expand(text: str) -> tuple[str, ...]:
    """`"t[1-3,07-09],i1"` -> t1 t2 t3 t07 t08 t09 i1, in that order; "" and "(null)" are empty.

    Raises BadHostlist.
    """
    return expand_up_to(_MOST_NODES, text)


def expand_up_to(most: int, text: str) -> tuple[str, ...]:
    """`expand` of a text that anybody may have written: it remembers nothing, and stops after `most` names.

    Raises BadHostlist.
    """
    if text in ("", "(null)", "None"):
        return ()
    names: list[str] = []
    for word in _split_outside_brackets(text):
        for name in _expand_word(word, text):
            names.append(name)
            if len(names) > most:
                raise BadHostlist(f"'{text[:80]}' names more than {most} nodes")
    return tuple(names)


def _split_outside_brackets(text: str) -> list[str]:
    words = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(words) != text:
        raise BadHostlist(f"'{text[:80]}' is not a list of nodes such as t[1-3],i1")
    return words


def _expand_word(word: str, text: str) -> Iterator[str]:
    """Expand one word, which may have several brackets: `r[1-2]n[1-4]` (the last changes fastest)."""
    before, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    inside, _, after = rest.partition("]")
    for number in _numbers(inside, text):
        for tail in _expand_word(after, text):
            yield f"{before}{number}{tail}"


def _numbers(inside: str, text: str) -> Iterator[str]:
    for part in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise BadHostlist(f"'{text[:80]}': '{part}' is not a number or a range of numbers")
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
