"""Renamed settings. For one release, flexo.toml may use the old name, and flexod reports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SECTIONS: Final = {"journal": "event_store"}
"""The old name of each section, with the new name."""
KEYS: Final = {("controller", "lease_s"): "time_limit_s"}
"""The section and old name of each key, with the new name."""
VALUES: Final = {("controller", "order", "slurm"): "cluster"}
"""The section, key and old name of each value, with the new name."""

Tree = dict[str, Any]
Lines = dict[tuple[str, ...], int]
"""The line of each section and key in a TOML file."""


def renamed(tree: Mapping[str, Any]) -> tuple[Tree, tuple[str, ...]]:
    """`tree` under the new names, with a sentence for each old name in it.

    Raises ValueError if a section or a key is there under both names.
    """
    new, notices = dict(tree), list[str]()
    for old, name in SECTIONS.items():
        if old not in new:
            continue
        if name in new:
            raise ValueError(f"[{old}] is the old name of [{name}], and both are there: keep [{name}]")
        new[name] = new.pop(old)
        notices.append(f"[{old}] is called [{name}] since 0.2; 0.3 refuses the old name")
    for (section, old), key in KEYS.items():
        keys = new.get(section)
        if not isinstance(keys, dict) or old not in keys:
            continue
        if key in keys:
            raise ValueError(f"[{section}] {old} is the old name of {key}, and both are there: keep {key}")
        new[section] = {key if each == old else each: value for each, value in keys.items()}
        notices.append(f"[{section}] {old} is called {key} since 0.2; 0.3 refuses the old name")
    for (section, key, old), value in VALUES.items():
        keys = new.get(section)
        if isinstance(keys, dict) and keys.get(key) == old:
            new[section] = keys | {key: value}
            notices.append(f'[{section}] {key} = "{old}" is "{value}" since 0.2; 0.3 refuses the old value')
    return new, tuple(notices)


def under_new_names(lines: Mapping[tuple[str, ...], int]) -> Lines:
    """`lines`, under the new names of sections and keys."""
    new = {(SECTIONS.get(path[0], path[0]), *path[1:]): line for path, line in lines.items()}
    return new | {
        (section, key): new[section, old] for (section, old), key in KEYS.items() if (section, old) in new
    }
