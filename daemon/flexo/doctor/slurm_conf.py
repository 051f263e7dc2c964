"""Reads slurm.conf itself, so that a change can be examined before slurmctld is started with it.

slurm.conf(5): keys are written in any case, and text after # is a comment. A line that ends with a backslash
goes on in the next one. `Include FILE` reads another file in its place. The values of `PartitionName=DEFAULT`
hold for the partitions below it. Defaults are those that all releases since 22.05 have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flexo.clusters.slurm.hostlist import BadHostlist, expand
from flexo.clusters.slurm.text import BadValue
from flexo.doctor.slurm_keys import PARTITION_KEYS, meant
from flexo.doctor.slurm_says import PartitionSetup, SlurmConfig, config_of, partition_of

_WORD: Final = re.compile(r"""([A-Za-z]+)\s*(?:\+|-)?=\s*("[^"]*"|\S*)""")
_COMMENT: Final = re.compile(r"(?<!\\)#.*")
_INCLUDE: Final = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_GPU: Final = re.compile(r"(?:^|,)gpu(?::|,|$)")
_DEEPEST: Final = 8
"""Files that include each other deeper than this include themselves."""
_DEFAULTS: Final = {
    "authtype": "auth/munge",
    "schedulertype": "sched/backfill",
    "preempttype": "preempt/none",
    "preemptmode": "OFF",
    "selecttypeparameters": "CR_Core_Memory",
}
_IN_ANY_CASE: Final = frozenset(
    {"PreemptMode", "State", "RootOnly", "Default", "ExclusiveUser", "OverSubscribe"}
)
_OF_SEVERAL: Final = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname", "switchname")
"""The keys of lines that each describe one thing of several."""


class BadSlurmConf(ValueError):
    """A slurm.conf that cannot be read; the message names file, line and what is wrong."""


class UnreadableSlurmConf(BadSlurmConf):
    """A file that is not there, is a folder or may not be read, or that sets nothing."""


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """What slurm.conf sets up, as far as the doctor judges it."""

    config: SlurmConfig
    partitions: tuple[PartitionSetup, ...]
    lines: tuple[Line, ...]
    nodes: tuple[Defined, ...]
    """Every node, as often as a NodeName= has it."""
    named_partitions: tuple[Defined, ...]
    """Every partition, as often as a PartitionName= has it."""
    gpu_nodes: frozenset[str]
    """The nodes with Gres=gpu."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that says something."""

    place: str
    """The file and the line's number, for people."""
    words: Mapping[str, str]
    """By key, in lower case and as it was meant."""
    misspelt: tuple[tuple[str, str], ...]
    """The keys that are misspelt: as they are written, and as they were meant."""
    written: frozenset[str]
    """The keys and values as they are written."""


@dataclass(frozen=True, slots=True)
class Defined:
    """A node or a partition, and the line that defines it."""

    name: str
    place: str
    nodes: frozenset[str]


@dataclass(slots=True)
class _Nodes:
    """The names of nodes, by NodeName= and NodeSet=."""

    features: dict[str, frozenset[str]] = field(default_factory=dict)
    """By node."""
    sets: dict[str, frozenset[str]] = field(default_factory=dict)
    defined: list[Defined] = field(default_factory=list)
    with_gpus: set[str] = field(default_factory=set)

    def named(self, text: str) -> frozenset[str]:
        """The nodes of a list of nodes and sets of nodes. Raises BadHostlist."""
        if text.upper() == "ALL":
            return frozenset(self.features)
        found: set[str] = set()
        for name in expand(text):
            found |= self.sets.get(name, {name})
        return frozenset(found)


def read_slurm_conf(path: Path) -> SlurmConf:
    """Read slurm.conf and what it includes. Raises BadSlurmConf."""
    settings: dict[str, str] = dict(_DEFAULTS)
    described: list[Line] = []
    lines: list[Line] = []
    for line in _lines(path, path.parent, settings, 0):
        lines.append(line)
        if line.words.keys() & set(_OF_SEVERAL):
            described.append(line)
        else:
            settings |= line.words
    if not lines:
        raise UnreadableSlurmConf(f"{path} is empty: it sets nothing")
    settings["preemptmode"] = settings["preemptmode"].upper()
    if exempt := settings.get("preemptexempttime"):
        settings["preemptexempttime"] = "NONE" if exempt == "-1" else _as_scontrol_prints(exempt)
    config = config_of(lambda name: str(path) if name == "SLURM_CONF" else settings.get(name.lower(), ""))
    nodes, partitions, named = _nodes(described), list[PartitionSetup](), list[Defined]()
    for place, partition in _partitions(described, nodes):
        named.append(Defined(partition.name, place, partition.nodes))
        partitions.append(partition)
    return SlurmConf(
        config,
        tuple(partitions),
        tuple(lines),
        tuple(nodes.defined),
        tuple(named),
        frozenset(nodes.with_gpus),
    )


def _lines(path: Path, folder: Path, settings: Mapping[str, str], depth: int) -> Iterator[Line]:
    """All lines that say something, those of included files in their place."""
    if depth > _DEEPEST:
        raise BadSlurmConf(f"{path} includes itself")
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UnreadableSlurmConf(f"{path} cannot be read: {error.strerror}") from error
    for number, line in _whole_lines(text):
        place = f"{path}:{number}"
        if included := _INCLUDE.match(line):
            named = included[1].strip('"').replace("%c", settings.get("clustername", ""))
            yield from _lines(folder / named, folder, settings, depth + 1)
        elif line.strip():
            yield _line(line, place)


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """The number of each first line, and the line without its comment and with those that it goes on in."""
    began, so_far = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        began = began or number
        line = _COMMENT.sub("", line).rstrip()
        if line.endswith("\\"):
            so_far += line[:-1] + " "
        else:
            yield began, so_far + line
            began, so_far = 0, ""
    if so_far:
        yield began, so_far


def _line(text: str, place: str) -> Line:
    found = [(key, value.strip('"')) for key, value in _WORD.findall(text)]
    if rest := _WORD.sub("", text).strip():
        raise BadSlurmConf(f"{place}: '{rest[:40]}' is no NAME=VALUE")
    misspelt = tuple((key, key_meant) for key, _ in found if (key_meant := meant(key)))
    corrected = dict(misspelt)
    return Line(
        place,
        {corrected.get(key, key).lower(): value for key, value in found},
        misspelt,
        frozenset(word for key, value in found for word in (key, value, *value.split(","))),
    )


def _nodes(lines: list[Line]) -> _Nodes:
    """All nodes and sets of nodes. Raises BadSlurmConf."""
    nodes, defaults = _Nodes(), dict[str, str]()
    for line in lines:
        if (name := line.words.get("nodename")) == "DEFAULT":
            defaults |= line.words
        elif name is not None:
            words = {**defaults, **line.words}
            features = frozenset(words.get("features", words.get("feature", "")).split(","))
            names = _expanded(line.place, name)
            nodes.features |= dict.fromkeys(names, features)
            nodes.defined += [Defined(each, line.place, frozenset({each})) for each in names]
            if _GPU.search(words.get("gres", "")):
                nodes.with_gpus.update(names)
    for line in lines:
        if name := line.words.get("nodeset"):
            having = {node for node, has in nodes.features.items() if line.words.get("feature", "\0") in has}
            nodes.sets[name] = frozenset(_expanded(line.place, line.words.get("nodes", ""))) | having
    return nodes


def _expanded(place: str, names: str) -> tuple[str, ...]:
    try:
        return expand(names)
    except BadHostlist as error:
        raise BadSlurmConf(f"{place}: {error}") from error


def _partitions(lines: list[Line], nodes: _Nodes) -> Iterator[tuple[str, PartitionSetup]]:
    """All partitions and the places of their lines, those of one line each by itself. Raises BadSlurmConf."""
    defaults = dict[str, str]()
    for line in lines:
        names = line.words.get("partitionname")
        if names == "DEFAULT":
            defaults |= line.words
        elif names is not None:
            words = {**defaults, **line.words}
            for name in _expanded(line.place, names):
                try:
                    partition = partition_of(_fields(words, name), nodes.named(words.get("nodes", "")))
                except (BadHostlist, BadValue) as error:
                    raise BadSlurmConf(f"{line.place}: {error}") from error
                yield line.place, partition


def _fields(words: Mapping[str, str], name: str) -> Mapping[str, str]:
    """The words of a partition's line as scontrol prints them. Raises BadValue."""
    older = {"prioritytier": words.get("priority"), "oversubscribe": words.get("shared")}
    known = {**{key: value for key, value in older.items() if value}, **words}
    fields = {key: known[key.lower()] for key in PARTITION_KEYS if key.lower() in known}
    fields |= {key: fields[key].upper() for key in _IN_ANY_CASE & fields.keys()}
    if limit := fields.get("MaxTime"):
        fields["MaxTime"] = _as_scontrol_prints(limit)
    return {**fields, "PartitionName": name}


def _as_scontrol_prints(limit: str) -> str:
    """A time limit as scontrol prints it: slurm.conf may have minutes alone, or days and hours."""
    if limit.upper() in {"INFINITE", "UNLIMITED"}:
        return "UNLIMITED"
    if limit.isdecimal():
        return f"{limit}:00"
    if re.fullmatch(r"\d+-\d+(:\d+)?", limit):
        return f"{limit}:00" if ":" in limit else f"{limit}:00:00"
    return limit
