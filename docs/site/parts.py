"""What is generated into pages, where a comment `<!-- generated: NAME -->` asks for it on a line of its own.

So a page has what people wrote and what the program says of itself, and nothing stands twice.
"""

from __future__ import annotations

import re
from functools import cache

import reference_commands
import reference_configuration
import reference_protos
import reference_rooms
import reference_states

MARK = re.compile(r"^<!-- generated: (.+) -->$", re.MULTILINE)


class UnknownPart(Exception):
    """A page asks for what nobody generates; the message names what there is."""


@cache
def all_parts() -> dict[str, str]:
    """Every part by its name."""
    return {
        **reference_configuration.parts(),
        **reference_commands.parts(),
        **reference_protos.parts(),
        **reference_rooms.parts(),
        **reference_states.parts(),
    }


def filled(markdown: str) -> str:
    """`markdown` with its parts in their places. Raises UnknownPart."""
    return MARK.sub(lambda match: _part(match[1]), markdown)


def _part(name: str) -> str:
    try:
        return all_parts()[name]
    except KeyError:
        raise UnknownPart(f"nobody generates '{name}'; there are: {', '.join(all_parts())}") from None
