"""`python -m flexo_lab.yarn`: downloads what YARN labs need. `--check` succeeds if nothing is missing.

`--check-kerberos` succeeds if nothing is missing for labs with Kerberos, which set-up installs.
"""

from __future__ import annotations

import shutil
import sys

from flexo_lab.errors import LabError
from flexo_lab.yarn import jars, kerberos


def main() -> None:
    """Entry point."""
    if sys.argv[1:] == ["--check"]:
        sys.exit(not (jars.cached().is_dir() and shutil.which("java")))
    if sys.argv[1:] == ["--check-kerberos"]:
        sys.exit(kerberos.why_unavailable() is not None)
    try:
        jars.ensure(print)
    except LabError as error:
        sys.exit(f"flexo: {error}")


if __name__ == "__main__":
    main()
