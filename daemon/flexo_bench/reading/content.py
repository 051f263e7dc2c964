"""What two looks at one cluster show differently, field by field. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from flexo.model.nodes import Node, Partition
from flexo.model.queue import QueuedJob


@dataclass(frozen=True, slots=True)
class Look:
    """All that a reader shows of a cluster at one time."""

    jobs: tuple[QueuedJob, ...]
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A field of one object; the field "" is the object itself, which one look lacks."""

    kind: str
    """node, partition or job."""
    name: str
    field: str


@dataclass(frozen=True, slots=True)
class Example:
    """What the two looks show of one object in one field."""

    name: str
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class OfField:
    """The differences in one field."""

    title: str
    """The kind of the objects and the field, as in job.name."""
    count: int
    examples: tuple[Example, ...]


_EXAMPLES = 6
Differences = Mapping[Place, tuple[str, str]]
"""What each of the two looks shows in the places in which they differ."""


def differences(one: Look, other: Look) -> Differences:
    """All places in which two looks differ. An object that comes twice counts as an object of its own."""
    found: dict[Place, tuple[str, str]] = {}
    for kind, ours, theirs in (
        ("job", _by_name(one.jobs), _by_name(other.jobs)),
        ("node", _by_name(one.nodes), _by_name(other.nodes)),
        ("partition", _by_name(one.partitions), _by_name(other.partitions)),
    ):
        for name in ours.keys() | theirs.keys():
            for field, left, right in _of_object(ours.get(name), theirs.get(name)):
                found[Place(kind, name, field)] = left, right
    return found


def lasting(rounds: Sequence[Differences]) -> Differences:
    """The differences that every round has: the others are what the cluster did between two looks."""
    if not rounds:
        return {}
    common = frozenset.intersection(*(frozenset(each) for each in rounds))
    return {place: rounds[-1][place] for place in sorted(common)}


def by_field(found: Differences) -> tuple[OfField, ...]:
    """The differences by field, the most frequent first."""
    places: dict[str, list[Place]] = {}
    for place in sorted(found):
        places.setdefault(_title(place), []).append(place)
    return tuple(
        OfField(title, len(of_it), _examples(of_it, found))
        for title, of_it in sorted(places.items(), key=lambda pair: -len(pair[1]))
    )


def _examples(places: Sequence[Place], found: Differences) -> tuple[Example, ...]:
    """A few that show different things."""
    shown = {found[place]: place.name for place in reversed(places)}
    return tuple(Example(name, *said) for said, name in list(shown.items())[-_EXAMPLES:])


def _title(place: Place) -> str:
    return f"{place.kind}.{place.field}" if place.field else f"{place.kind} (whole)"


def _by_name(objects: Iterable[Node | Partition | QueuedJob]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in objects:
        name = str(each.job_id) if isinstance(each, QueuedJob) else each.name
        while name in found:
            name += "'"
        found[name] = each
    return found


def _of_object(one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    if one is None or other is None:
        yield "", "missing" if one is None else "there", "missing" if other is None else "there"
        return
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if left != right:
            yield field.name, repr(left), repr(right)
