"""Parsers of values on the command line: shares, GPU types, quotas, settings of policies."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

import typer

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.training import Quota

_Choice = TypeVar("_Choice", bound=Enum)


def share(text: str, option: str) -> float:
    """Parse a share, ``"0.2"`` or ``"20%"``."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d+)?|\.\d+)(%?)", text.strip(), re.ASCII)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"'{text}' is no share: it takes 0 to 1, or 0% to 100%", param_hint=option)
    return value


def minutes(text: str, option: str) -> float:
    """Parse a number of minutes, ``"4"`` or ``"0.5"``, into seconds. ``"all"`` and 0 set no limit."""
    if text.strip() == "all":
        return math.inf
    if not re.fullmatch(r"\d{1,5}(?:\.\d+)?", text.strip(), re.ASCII):
        raise typer.BadParameter(f"'{text}' is no time: it takes minutes, or all", param_hint=option)
    return 60 * float(text) or math.inf


def choice(kind: type[_Choice], text: str, option: str) -> _Choice:
    """The member of `kind` with the value `text`."""
    values = [member.value for member in kind]
    if text not in values:
        raise typer.BadParameter(f"'{text}' is none of {', '.join(values)}", param_hint=option)
    return kind(text)


def node_groups(text: str, on_loan: Iterable[str]) -> tuple[NodeGroup, ...]:
    """Parse ``"v100:16x8,t4:4x8"``: 16 nodes of 8 V100, 4 of 8 T4.

    `on_loan`: types whose nodes are inference servers.
    """
    option, groups, loaned = "--gpu-types", [], frozenset(on_loan)
    for part in text.split(","):
        match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_.-]*):(\d{1,6})x(\d{1,4})", part.strip(), re.ASCII)
        if match is None or not int(match[2]) or not int(match[3]):
            takes = "TYPE:NODESxGPUS, as in v100:16x8,t4:4x8"
            raise typer.BadParameter(f"'{part}' is not understood: it takes {takes}", param_hint=option)
        features = frozenset({"borrowed"}) if match[1] in loaned else frozenset[str]()
        groups.append(NodeGroup(int(match[2]), int(match[3]), match[1], f"{match[1]}-", features))
    types = [group.gpu_type for group in groups]
    if len(set(types)) < len(types):
        raise typer.BadParameter("a type stands there twice", param_hint=option)
    if unknown := loaned.difference(types):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: not among --gpu-types {text}", param_hint="--on-loan"
        )
    return tuple(groups)


def quota(text: str) -> Quota:
    """Parse a quota, ``"research=64"``."""
    tenant, _, gpus = text.rpartition("=")
    if not tenant or not gpus.isascii() or not gpus.isdigit():
        raise typer.BadParameter(
            f"'{text}' is not understood: it takes TENANT=GPUS, as in research=64", param_hint="--quota"
        )
    return Quota(tenant, int(gpus))


def gpu_speed(text: str) -> tuple[str, float]:
    """Parse ``"t4=0.33"`` into a type in small letters and its speed."""
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_.-]*)=(\d+(?:\.\d*)?|\.\d+)", text, re.ASCII)
    if match is None or not float(match[2]):
        raise typer.BadParameter(
            f"'{text}' is not understood: it takes TYPE=SPEED, above 0, as in t4=0.33",
            param_hint="--gpu-speed",
        )
    return match[1].casefold(), float(match[2])


def setting(text: str) -> tuple[str, str, object]:
    """Parse ``"lyra.stay_s=300"`` into policy, setting, value. A value that is not TOML is taken as text."""
    match = re.fullmatch(r"([a-z][a-z0-9-]*)\.([a-z_][a-z0-9_]*)=(.*)", text)
    if match is None:
        raise typer.BadParameter(
            f"'{text}' is not understood: it takes POLICY.SETTING=VALUE, as in lyra.stay_s=300",
            param_hint="--set",
        )
    try:
        value: object = tomllib.loads(f"value = {match[3]}")["value"]
    except tomllib.TOMLDecodeError:
        value = match[3]
    return match[1], match[2], value
