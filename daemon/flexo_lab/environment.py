"""The clean environment of commands on a lab of any kind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flexo_lab.processes import Account
from flexo_lab.requirements import SYSTEM_PATH

_KEPT_VARIABLES = ("LANG", "LC_ALL", "TERM", "TZ", "FLEXO_LABS", "FLEXO_CACHE", "PYTHONDONTWRITEBYTECODE")


def clean_environment(account: Account, lab: str) -> dict[str, str]:
    """The environment of a command that `account` runs on the lab of this name, without the cluster's own."""
    kept = {key: os.environ[key] for key in _KEPT_VARIABLES if key in os.environ}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}",
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "FLEXO_LAB": lab,
    }
