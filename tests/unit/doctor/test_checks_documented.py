"""docs/reference/doctor.md has a row for each group of checks that the doctor can give, and for no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCTOR = ROOT / "daemon" / "flexo" / "doctor"
_NAMED = re.compile(r'"([a-z]+)\.(?!conf")[a-z_]+"|\bcheck = "([a-z]+)"')
"""The name of a check stands in the code as it is reported; `clock` is the only one of its group. Names of
files end with .conf."""


def groups_in_the_code() -> set[str]:
    """Without those of `flexo yarn doctor`, which are called as YARN's settings are."""
    files = [path for path in DOCTOR.glob("*.py") if path.name != "yarn.py"]
    found = [_NAMED.findall(path.read_text()) for path in files]
    return {dotted or alone for names in found for dotted, alone in names}


def groups_in_the_table() -> set[str]:
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text()
    table = page.split("| checks | what is looked at |\n")[1]
    return set(re.findall(r"^\| `(\w+)(?:\.\*)?` \|", table.split("\n\n")[0], re.MULTILINE))


def test_every_group_of_checks_is_in_the_table_and_no_other() -> None:
    assert {"munge", "clock", "availability"} <= groups_in_the_code()
    assert groups_in_the_code() == groups_in_the_table()
