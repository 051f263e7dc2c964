"""Reproducible mode (flexo run --reproducible): the same bits whatever the resizes. Its option and variable.

The script always runs as the same number of processes, its virtual workers. A GPU carries several of them
while the job has fewer GPUs. leader/membership/virtual_workers.py says which GPU carries which.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "FLEXO_REPRODUCIBLE"
"""Environment variable: the number of virtual workers. Unset or empty: the mode is off."""
OF_MAXIMUM = "maximum"
"""The variable's value until the job's maximum is known, if the user has named no number."""
OPTION = "--reproducible"


def virtual_workers(environment: Mapping[str, str]) -> int:
    """The number of virtual workers; 0 if the mode is off."""
    return int(environment.get(VARIABLE) or 0)


def asked(value: str, *, given: bool) -> str:
    """The variable's value for the option, `given` with a value or alone. Raises ValueError."""
    if given and not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise ValueError(f"{OPTION}={value}: allowed is a number of virtual workers, such as {OPTION}=8")
    return value if given else OF_MAXIMUM


def settled(value: str, maximum: int) -> str:
    """The variable's value for a job of at most `maximum` workers. Raises ValueError if it cannot be."""
    if value == OF_MAXIMUM:
        return str(maximum)
    if int(asked(value, given=True)) < maximum:
        raise ValueError(
            f"{OPTION}={value}: allowed are at least {maximum} virtual workers, the job's maximum:"
            " each of its GPUs carries one or more"
        )
    return str(int(value))
