"""Names the keys of slurm.conf that the doctor looks at, and recognizes them when they are misspelt."""

from __future__ import annotations

from typing import Final

from flexo.doctor.slurm_says import config_of

PARTITION_KEYS: Final = (
    *("PriorityTier", "PreemptMode", "GraceTime", "MaxTime", "State", "AllocNodes", "RootOnly", "Default"),
    *("JobDefaults", "DefMemPerCPU", "DefMemPerNode", "ExclusiveUser", "OverSubscribe", "QoS"),
)
"""The fields of a partition that the doctor judges, named as scontrol names them."""
_OTHER_KEYS: Final = (
    *("NodeName", "NodeSet", "PartitionName", "Nodes", "Feature", "Features", "Gres", "Priority", "Shared"),
    *("SlurmctldHost", "ControlMachine", "CPUs", "RealMemory", "AllowGroups", "AllowAccounts"),
)
_ALIKE: Final = frozenset({"cpu", "defmempergpu", "slurmduser", "defaults"})
"""Slurm's own keys that differ from one above by one letter: all there are in slurm.conf(5) of 22.05."""


def _settings() -> tuple[str, ...]:
    """The settings that SlurmConfig has."""
    asked: list[str] = []

    def note(name: str) -> str:
        asked.append(name)
        return ""

    config_of(note)
    return tuple(asked)


_KEYS: Final = {key.lower(): key for key in (*_settings(), *PARTITION_KEYS, *_OTHER_KEYS)}


def meant(written: str) -> str:
    """The key that `written` is but for one letter that is wrong, missing, superfluous, or exchanged with the
    next one. "" for any other key, also for one spelt correctly."""
    key = written.lower()
    if key in _KEYS or key in _ALIKE:
        return ""
    return next((name for small, name in _KEYS.items() if _one_letter_apart(key, small)), "")


def _one_letter_apart(one: str, other: str) -> bool:
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) == 1 or (len(one) == 2 and one == other[::-1])
