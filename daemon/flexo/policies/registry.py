"""All policies by the names that `--policy` and `[controller] policy` take."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping
from typing import Any, Final, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from flexo.policies.base import Policy

_WHERE: Final[Mapping[str, str]] = {
    "greedy": "greedy:Greedy",
    "fifo": "fifo:Fifo",
    "backfill": "backfill:Backfill",
    "srtf": "srtf:Srtf",
    "tiresias": "tiresias:Tiresias",
    "elastic-tiresias": "elastic_tiresias:ElasticTiresias",
    "tiresias-pollux": "tiresias_pollux:TiresiasPollux",
    "lyra": "lyra:Lyra",
    "throughput": "throughput:Throughput",
    "max-batch": "fixed_batch:MaxBatch",
    "min-batch": "fixed_batch:MinBatch",
    "random-batch": "fixed_batch:RandomBatch",
    "antman": "antman:AntMan",
    "goodput": "goodput:Goodput",
}
"""Module of this package and class, imported only when it is asked for."""
_BY_RUNNING_TIMES: Final = frozenset({"backfill", "srtf", "lyra", "goodput"})
"""Those that look at `TrainingJob.remaining_work`."""

_ORDERING: Final = frozenset({"srtf", "tiresias", "elastic-tiresias", "tiresias-pollux", "lyra", "antman"})
"""Those that say in which order pending jobs are to start (`Plan.order`)."""
_ON_SLURM_ONLY: Final = frozenset({"greedy"})
"""Those that deal out satellites and think of nothing else."""
_ON_SLURM: Final[Mapping[str, Mapping[str, object]]] = {"lyra": {"saved": "parts"}}
"""Settings that flexod has them with, where those are not the defaults, which are the papers'."""
_BORROWED: Final = "inference"
"""The setting that says which nodes are inference servers on loan."""
_GPU_SPEEDS: Final = "gpu_speeds"
"""The setting that says what GPUs do by their type."""
_WEIGHING: Final = frozenset({"lyra", "goodput"})
"""Those that look at `TrainingJob.weight`."""
_QUOTAS: Final = frozenset({"antman"})
"""Those that look at `Snapshot.quotas`."""


class UnknownPolicy(ValueError):
    """A name that no policy has; the message says which there are, and which is near."""


class BadSetting(ValueError):
    """A setting that the policy does not have; the message says which it has."""


def names() -> tuple[str, ...]:
    """All names."""
    return tuple(_WHERE)


def goes_by_running_times(name: str) -> bool:
    """Whether its plans depend on how long jobs will run; taken to be so of a policy that is not known."""
    return name in _BY_RUNNING_TIMES or name not in _WHERE


def simulates(name: str) -> bool:
    """Whether it can start jobs itself, and so be simulated; taken to be so of one that is not known."""
    return name not in _ON_SLURM_ONLY


def on_slurm(
    name: str, borrowed: str = "", gpu_speeds: Mapping[str, float] | None = None
) -> Mapping[str, object]:
    """Settings that this policy has in flexod, other than its defaults.

    `borrowed`: the partition of servers on loan, for those that look for it; "": as by default. `gpu_speeds`:
    what GPUs do by their type, likewise; None: as by default.
    """
    told = {_BORROWED: borrowed or None, _GPU_SPEEDS: gpu_speeds}
    has = settings_of(name)
    heeded = {setting: value for setting, value in told.items() if value is not None and setting in has}
    return {**_ON_SLURM.get(name, {}), **heeded}


def ordering() -> tuple[str, ...]:
    """Those that put pending jobs in an order of their own."""
    return tuple(name for name in _WHERE if name in _ORDERING)


def weighing() -> tuple[str, ...]:
    """Those for which a user's share can count."""
    return tuple(name for name in _WHERE if name in _WEIGHING)


def by_quotas() -> tuple[str, ...]:
    """Those that go by what tenants are guaranteed."""
    return tuple(name for name in _WHERE if name in _QUOTAS)


def settings_of(name: str) -> tuple[str, ...]:
    """What can be set of the policy of this name. Raises UnknownPolicy."""
    return tuple(field.name for field in dataclasses.fields(_class_of(name)) if field.init)


def make(name: str, **settings: object) -> Policy:
    """The policy of this name, with its defaults but for `settings`. Raises UnknownPolicy, BadSetting."""
    made, allowed = _class_of(name), settings_of(name)
    for setting in settings:
        if setting not in allowed:
            has = f"its settings: {', '.join(allowed)}" if allowed else "it has no settings"
            raise BadSetting(f"the policy {name} has no setting '{setting}'; {has}")
    return cast(Policy, made(**{setting: _checked(made, setting, settings[setting]) for setting in settings}))


def _checked(kind: type[object], setting: str, value: object) -> object:
    """`value` as the setting has it, a list as a tuple. Raises BadSetting."""
    try:
        checked: object = TypeAdapter(get_type_hints(kind)[setting]).validate_python(value)
    except ValidationError as error:
        raise BadSetting(f"{setting} is {value!r}: {error.errors()[0]['msg']}") from error
    numbers = checked if isinstance(checked, tuple) else (checked,)
    if any(isinstance(number, int | float) and not number >= 0 for number in numbers):
        raise BadSetting(f"{setting} is {value!r}: it takes numbers from 0 on")
    return checked


def _class_of(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        near = difflib.get_close_matches(name, _WHERE, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise UnknownPolicy(f"there is no policy '{name}'{hint} There are: {', '.join(_WHERE)}")
    module, _, kind = where.partition(":")
    return getattr(importlib.import_module(f"flexo.policies.{module}"), kind)
