"""What a container runs, as the NodeManager's launch script needs it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

LOG_FOLDER = "<LOG_DIR>"
"""The NodeManager puts the container's log folder there; log aggregation collects what is in it."""


def command_line(words: Sequence[str]) -> str:
    """The command of these words, with its output in the container's log folder.

    The NodeManager writes `exec /bin/bash -c "COMMAND"` and escapes nothing: quotes and dollars in it
    would be read by two shells.
    """
    quoted = re.sub(r'([\\"$`])', r"\\\1", shlex.join(words))
    return f"{quoted} > {LOG_FOLDER}/stdout 2> {LOG_FOLDER}/stderr"
