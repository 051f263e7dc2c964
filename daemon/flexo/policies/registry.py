"""All policies by the names that `--policy` and `[controller] policy` take."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping
from typing import Final, cast

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


def make(name: str, **settings: object) -> Policy:
    """The policy of this name, with its defaults but for `settings`. Raises UnknownPolicy, BadSetting."""
    where = _WHERE.get(name)
    if where is None:
        near = difflib.get_close_matches(name, _WHERE, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise UnknownPolicy(f"there is no policy '{name}'{hint} There are: {', '.join(_WHERE)}")
    module, _, kind = where.partition(":")
    made = getattr(importlib.import_module(f"flexo.policies.{module}"), kind)
    allowed = [field.name for field in dataclasses.fields(made) if field.init]
    for setting in settings:
        if setting not in allowed:
            has = f"its settings: {', '.join(allowed)}" if allowed else "it has no settings"
            raise BadSetting(f"the policy {name} has no setting '{setting}'; {has}")
    return cast(Policy, made(**settings))
