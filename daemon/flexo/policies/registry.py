"""All policies by the names that `--policy` and `[controller] policy` take.

Another package offers a policy as an entry point of the group `flexo.policies`
(docs/howto/write-a-policy.md).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, get_type_hints

from pydantic import TypeAdapter, ValidationError

from flexo.policies.base import Policy, SiteFact

GROUP: Final = "flexo.policies"
"""The entry-point group of policies."""
_BUILT_IN: Final[Mapping[str, str]] = {
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
"""Per name: module of this package and class. A module is imported only on demand."""


class UnknownPolicy(ValueError):
    """The error for a name that no policy has; the message says which there are, and which is near."""


class BrokenPolicy(UnknownPolicy):
    """The error for a policy of another package that cannot be used; the message names the package and the
    reason."""


class BadSetting(ValueError):
    """The error for a setting that the policy does not have, or a bad value; the message says which it
    has."""


def names() -> tuple[str, ...]:
    """All names, flexo's own first."""
    return (*_BUILT_IN, *_offered())


def built_in(having: str = "") -> tuple[str, ...]:
    """The names of flexo's own policies; with `having`, only of policies that have this property."""
    return tuple(name for name in _BUILT_IN if not having or getattr(class_of(name), having))


def class_of(name: str) -> type[Policy]:
    """The class of this name, which has the policy's properties. Raises UnknownPolicy."""
    where = _BUILT_IN.get(name)
    if where is not None:
        module, _, kind = where.partition(":")
        found: type[Policy] = getattr(importlib.import_module(f"flexo.policies.{module}"), kind)
        return found
    offered = _offered().get(name)
    if offered is not None:
        return _load(offered)
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    raise UnknownPolicy(f"there is no policy '{name}'{hint} There are: {', '.join(names())}")


def flexod_settings(name: str, site: Mapping[SiteFact, object] | None = None) -> Mapping[str, object]:
    """The settings of this policy in flexod that differ from its defaults. Raises UnknownPolicy.

    `site`: flexod's configuration, for policies that take a setting from it.
    """
    kind, told = class_of(name), site or {}
    taken = {setting: told[fact] for setting, fact in kind.from_site.items() if fact in told}
    return {**kind.in_flexod, **taken}


def settings_of(name: str) -> tuple[str, ...]:
    """The settings of the policy of this name. Raises UnknownPolicy."""
    return tuple(_fields(class_of(name)))


def make(name: str, **settings: object) -> Policy:
    """Make the policy of this name, with its defaults but for `settings`. Raises UnknownPolicy,
    BadSetting."""
    kind = class_of(name)
    allowed = _fields(kind)
    for setting in settings:
        if setting not in allowed:
            has = f"its settings: {', '.join(allowed)}" if allowed else "it has no settings"
            raise BadSetting(f"the policy {name} has no setting '{setting}'; {has}")
    return kind(**{setting: _checked(kind, setting, settings[setting]) for setting in settings})


def _fields(kind: type[Policy]) -> list[str]:
    if not dataclasses.is_dataclass(kind):
        return []
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _checked(kind: type[object], setting: str, value: object) -> object:
    """`value` converted to the type of the setting, a list to a tuple. Raises BadSetting."""
    try:
        checked: object = TypeAdapter(get_type_hints(kind)[setting]).validate_python(value)
    except ValidationError as error:
        raise BadSetting(f"{setting} is {value!r}: {error.errors()[0]['msg']}") from error
    numbers = checked if isinstance(checked, tuple) else (checked,)
    if any(isinstance(number, int | float) and not number >= 0 for number in numbers):
        raise BadSetting(f"{setting} is {value!r}: it takes numbers from 0 on")
    return checked


# Policies of other packages.


def _offered() -> Mapping[str, EntryPoint]:
    """The policies of installed packages, by name. flexo's own names cannot be taken."""
    return _offered_on(tuple(sys.path))


@cache
def _offered_on(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """The policies of packages on this path. They are cached, because the search takes long."""
    offered: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, _package(point))):
        owner = (
            "flexo"
            if point.name in _BUILT_IN
            else _package(offered[point.name])
            if point.name in offered
            else ""
        )
        if owner:
            warnings.warn(
                f"the policy '{point.name}' of {_package(point)} is left out: {owner} has one of that name",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            offered[point.name] = point
    return offered


def _package(point: EntryPoint) -> str:
    """The name and version of the distribution that offers the policy."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unnamed package"


def _load(point: EntryPoint) -> type[Policy]:
    """Load the class of a policy. Raises BrokenPolicy."""
    try:
        found: object = point.load()
    except Exception as error:  # its modules may raise anything when they are imported
        raise _broken(point, f"{point.value} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise _broken(point, f"{point.value} is not a class that extends flexo.policies.base.Policy")
    if getattr(found, "name", "") != point.name:
        raise _broken(point, f"its class says that its name is '{getattr(found, 'name', '')}'")
    if not (dataclasses.is_dataclass(found) and found.__dataclass_params__.frozen):
        raise _broken(point, f"{point.value} is not a frozen dataclass")
    if found.__abstractmethods__:
        raise _broken(point, f"{point.value} lacks {', '.join(sorted(found.__abstractmethods__))}")
    return found


def _broken(point: EntryPoint, why: str) -> BrokenPolicy:
    return BrokenPolicy(f"the policy '{point.name}' of {_package(point)} cannot be used: {why}")
