"""A process of its own that writes down what Slurm shows, twice a second.

`python -m chaos.system.observer FILE`. SLURM_CONF says which cluster. Where Slurm does not
answer, the line has `blind` and why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from chaos.system import looks

PERIOD_S = 0.5
_PATIENCE_S = 5.0
_JOBS = ("scontrol", "-d", "show", "job")
_PARTITIONS = ("scontrol", "--oneliner", "show", "partition")


def main(path: Path) -> None:
    """Until somebody ends it."""
    with path.open("a") as file:
        while True:
            began = time.monotonic()
            file.write(_line())
            file.flush()
            time.sleep(max(0.05, PERIOD_S - (time.monotonic() - began)))


def _line() -> str:
    at = time.time()
    try:
        return looks.to_line(looks.parse(at, _said(_JOBS), _said(_PARTITIONS)))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return json.dumps({"at": at, "blind": str(error)[:300]}) + "\n"


def _said(command: tuple[str, ...]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
