"""Refuses options that would have no effect beside the other options: the user expects an effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import typer


@dataclass(frozen=True, slots=True)
class _Need:
    """Parameters of a command that have no effect without another one."""

    parameters: tuple[str, ...]
    needed: str
    values: tuple[str, ...] = ()
    """Values of which the needed parameter must have or contain one; (): any."""
    instead: str = ""
    """Another parameter that serves as well as the needed one."""

    def is_met(self, context: typer.Context) -> bool:
        found = context.params.get(self.needed)
        if found and self.values:
            return any(value in found for value in self.values)
        return bool(found or context.params.get(self.instead))


_NEEDS: Final = (
    _Need(("trace_format",), "trace"),
    _Need(("partition",), "trace_format", ("sacct", "yarn")),
    _Need(("slurm_cluster",), "trace_format", ("sacct",)),
    _Need(("batch", "undeclared", "caution"), "trace_format", ("pollux",)),
    _Need(("arrivals", "load", "rate", "longest"), "generate"),
    _Need(("model",), "profiles"),
    _Need(("elastic_of", "min_factor", "max_factor", "min_gpus", "max_gpus"), "elastic_share"),
    _Need(("on_loan",), "gpu_types"),
    _Need(("gpu_speed", "mixed_efficiency"), "gpu_types", instead="inference_nodes"),
    _Need(("quota",), "policy", ("antman",)),
    _Need(("utilization",), "settings", ("antman.share_gpus=true",)),
)
_ONE_OF: Final = (("load", "rate"), ("min_factor", "min_gpus"), ("max_factor", "max_gpus"))


def refuse_idle(context: typer.Context) -> None:
    """Raise typer.BadParameter if an option has no effect without a missing one, or excludes another."""
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params if parameter.name}
    said = {name: option for name, option in options.items() if _is_typed(context, name)}
    for need in _NEEDS:
        idle = [said[name] for name in need.parameters if name in said]
        if idle and need.needed in options and not need.is_met(context):
            needed = " ".join(filter(None, (options[need.needed], " or ".join(need.values))))
            needed += f" or {options[need.instead]}" if need.instead else ""
            raise typer.BadParameter(f"it does nothing without {needed}", param_hint=idle[0])
    _refuse_two(said)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_two(said: dict[str, str]) -> None:
    for names in _ONE_OF:
        both: Sequence[str] = [said[name] for name in names if name in said]
        if len(both) > 1:
            raise typer.BadParameter(f"say one of {' and '.join(both)}", param_hint=both[0])
