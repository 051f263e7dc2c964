"""The command line of programs that build packages: which packages, where they go, and what is missing."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import staged


def parser(description: str, names: Collection[str], out: Path) -> argparse.ArgumentParser:
    """The options that all these programs have. `names`: the packages. `out`: the default folder."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--out", type=Path, default=out, help="where they are put; else %(default)s")
    made.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(names)}; else all")
    return made


def build(builders: Mapping[str, Callable[[Path], Path]], wanted: Sequence[str], out: Path) -> int:
    """Build the `wanted` packages, or all, into `out`, and print their paths. Returns the exit code."""
    if unknown := set(wanted) - set(builders):
        sys.stderr.write(f"packages: no package {sorted(unknown)[0]}; there are: {', '.join(builders)}\n")
        return 2
    os.umask(0o022)
    try:
        for name in wanted or builders:
            print(builders[name](out.resolve()))
    except staged.CannotBuild as error:
        sys.stderr.write(f"packages: {error}\n")
        return 1
    return 0
