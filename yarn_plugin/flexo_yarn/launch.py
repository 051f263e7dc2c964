"""What a container runs and has in its environment, as the NodeManager's launch script needs it.

The NodeManager first replaces {{, }}, <CPS> and <LOG_DIR> everywhere. Then it writes both between double
quotes into a script for bash, and escapes nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from flexo_protos.hadoop import yarn_pb2 as pb

LOG_FOLDER = "<LOG_DIR>"
"""The NodeManager puts the container's log folder there; log aggregation collects what is in it."""


def command_line(words: Sequence[str]) -> str:
    """The command of these words, with its output in the container's log folder.

    The NodeManager writes `exec /bin/bash -c "COMMAND"`, so that two shells read quotes and dollars.
    """
    quoted = _escaped(_apart(shlex.join(words), "''"))  # shlex.join quotes words with such characters
    return f"{quoted} > {LOG_FOLDER}/stdout 2> {LOG_FOLDER}/stderr"


def environment(variables: Mapping[str, str]) -> list[pb.StringString]:
    """The variables, whose values reach the program as they are. The NodeManager writes `export K="V"`."""
    return [
        pb.StringString(key=name, value=_apart(_escaped(value), '""')) for name, value in variables.items()
    ]


def _apart(text: str, nothing: str) -> str:
    """The text with `nothing`, which its quotes turn into nothing, within all that would be replaced."""
    return re.sub(r"(?<={)(?={)|(?<=})(?=})|(?<=<)(?=CPS>|LOG_DIR>)", nothing, text)


def _escaped(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)
