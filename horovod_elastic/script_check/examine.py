"""Checks a script: which tier it is, and what keeps it from being resized. Nothing of it is imported or run.

The check reads the script, and the modules beside it that it imports. It knows no values, so it can miss
things: groups made by an installed package, names that are looked up at run time, configuration files. What
it names may also be in code that this run does not reach.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from horovod_elastic.script_check import rules, sources
from horovod_elastic.script_check.findings import Finding, Level, Report, Tier
from horovod_elastic.script_check.stale_sizes import stale_sizes
from horovod_elastic.script_check.tree import Place, places

_FRAMEWORKS = (
    (("transformers.", "trl."), ("Trainer",), Tier.TRAINER),
    (("lightning.", "pytorch_lightning."), ("Trainer", "LightningCLI"), Tier.LIGHTNING),
    (("accelerate.",), ("Accelerator",), Tier.ACCELERATE),
)
NOT_RESIZED: Final = {
    "tensorflow": "TensorFlow",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron-LM",
    "jax": "JAX",
    "mxnet": "MXNet",
    "mpi4py": "MPI",
}
"""Packages with which scripts train on several GPUs in ways that flexo does not resize, and their names."""
_SHARDING_ARGUMENTS = ("--fsdp", "--deepspeed", "--tensor_parallel", "--use_fsdp", "--use_deepspeed")
_DECLARABLE = ("iterable-dataset", "sampler", rules.OWN_SAMPLER)
"""Rules about objects whose position in the data a script can declare."""
_BY_DECLARING = "declare state and position by flexo.elastic(...), see docs/howto/declare-state.md"
_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)


def check(script: Path, arguments: Sequence[str] = ()) -> Report:
    """Check a script that is started with these arguments. Raises ValueError or OSError if it cannot."""
    read = sources.read(script)
    found = list(places(read))
    tier = _tier(found)
    findings = {*_by_rules(found), *_of_tier(found, tier, str(script)), *_of_arguments(arguments)}
    if tier is Tier.HOROVOD:  # hvd.elastic.run enters the training function anew after a resize
        findings = {each for each in findings if each.rule not in ("static-shards", "stale-size")}
    elif tier in (Tier.DDP, Tier.DECLARED, Tier.UNKNOWN):
        findings = {_with_declaration(each, declares=_declares(found)) for each in findings}
    return Report(str(script), tuple(each.name for each in read), tier, tuple(sorted(findings)))


def _declares(found: Sequence[Place]) -> bool:
    return any(
        isinstance(place.node, ast.Call) and place.source.full(place.node.func) == "flexo.elastic"
        for place in found
    )


def _with_declaration(finding: Finding, *, declares: bool) -> Finding:
    """The finding in a script that declares state, or else with the hint that it can."""
    if finding.level is not Level.KEEPS:
        return finding
    if declares and finding.rule in (*_DECLARABLE, "static-shards"):
        return replace(finding, level=Level.MAY_KEEP, what=f"{finding.what}. Or declare its position")
    if finding.rule in _DECLARABLE:
        return replace(finding, what=f"{finding.what}. Or {_BY_DECLARING}")
    return finding


def _by_rules(found: Sequence[Place]) -> Iterator[Finding]:
    for place in found:
        for rule, what in rules.of(place):
            may = place.conditional() or rule == rules.OWN_SAMPLER
            level = Level.MAY_KEEP if may else Level.KEEPS
            yield Finding(place.source.name, place.line, rule, what, level)
        if test := rules.leaves_by_itself(place):
            what = (
                f"break if {test}: the condition may hold on some workers only. A resize waits until all"
                " workers ask for a batch again. Reduce the condition over all workers first"
            )
            yield Finding(place.source.name, place.line, "early-break", what, Level.HINT)
    yield from _several_groups(found)
    yield from _streams(found)
    yield from stale_sizes(found)


def _several_groups(found: Sequence[Place]) -> Iterator[Finding]:
    """Each further call of init_process_group in a function, if neither is in a branch."""
    homes = set()
    for place in found:
        if not _calls(place, "init_process_group"):
            continue
        home = next((outer for outer in reversed(place.around) if isinstance(outer, _SCOPES)), None)
        in_a_branch = any(isinstance(outer, ast.If | ast.Try | ast.ExceptHandler) for outer in place.around)
        if home in homes and not in_a_branch:
            what = "init_process_group() makes another default group. The job keeps its size from then on"
            yield Finding(place.source.name, place.line, "several-groups", what)
        if not in_a_branch:
            homes.add(home)


def _streams(found: Sequence[Place]) -> Iterator[Finding]:
    """Each use of a class that is an IterableDataset."""
    classes = {
        place.node.name
        for place in found
        if isinstance(place.node, ast.ClassDef)
        and any(place.source.full(base).rpartition(".")[2] == "IterableDataset" for base in place.node.bases)
    }
    for place in found:
        if isinstance(place.node, ast.Call) and _calls(place, *classes):
            what = (
                f"{ast.unparse(place.node.func)} is an IterableDataset: it has no order that flexo can deal"
                " out. A dataset with __len__ and __getitem__ has"
            )
            level = Level.MAY_KEEP if place.conditional() else Level.KEEPS
            yield Finding(place.source.name, place.line, "iterable-dataset", what, level)


# --- tiers ------------------------------------------------------------------------------------------------


def _tier(found: Sequence[Place]) -> Tier:
    called = {
        name
        for place in found
        if isinstance(place.node, ast.Call) and (name := place.source.full(place.node.func))
    }
    bases = {
        name
        for place in found
        if isinstance(place.node, ast.ClassDef)
        for base in place.node.bases
        if (name := place.source.full(base))
    }
    if any(name.startswith("horovod.") and name.endswith(".init") for name in called):
        return Tier.HOROVOD
    for begins, ends, tier in _FRAMEWORKS:
        if any(name.startswith(begins) and name.endswith(ends) for name in called | bases):
            return tier
    if any(name.rpartition(".")[2] in ("DistributedDataParallel", "DDP") for name in called):
        return Tier.DDP
    return Tier.DECLARED if _declares(found) else Tier.UNKNOWN


def _of_tier(found: Sequence[Place], tier: Tier, script: str) -> Iterator[Finding]:
    if tier is Tier.HOROVOD and not any(_names(place, "elastic.run") for place in found):
        what = "no hvd.elastic.run: Horovod resizes only scripts that have its elastic form"
        yield Finding(script, 1, "no-elastic-loop", what)
    if tier is Tier.UNKNOWN:
        others = " and ".join(_not_resized(found))
        what = (
            (f"it imports {others}, which flexo does not resize; " if others else "")
            + "nothing that flexo knows trains here: DistributedDataParallel, hvd.elastic.run, the Trainer of"
            f" transformers or Lightning, Accelerator. Or {_BY_DECLARING}"
        )
        yield Finding(script, 1, "no-known-loop", what)
    if tier is Tier.DDP:
        yield from _without_loader(found, script)


def _not_resized(found: Sequence[Place]) -> list[str]:
    """The frameworks of NOT_RESIZED that the script imports."""
    imported = {
        name.partition(".")[0]
        for place in found
        if isinstance(place.node, ast.Import | ast.ImportFrom)
        for name in (
            [place.node.module or ""]
            if isinstance(place.node, ast.ImportFrom)
            else [each.name for each in place.node.names]
        )
    }
    return [called for package, called in NOT_RESIZED.items() if package in imported]


def _without_loader(found: Sequence[Place], script: str) -> Iterator[Finding]:
    """Training loops without a DataLoader, of which the job is resized after a step, if there is none at all.

    Where the first step comes after a batch of some other DataLoader, flexo waits for batches in vain.
    """
    what = (
        "no DataLoader in {}: the job is resized after a step of the optimizer, and flexo deals out no"
        " samples. Each worker has to choose its own, by the rank of the moment"
    )
    loops = [place for place in found if rules.takes_no_batch(place)]
    elsewhere = any(_calls(place, "DataLoader", "StatefulDataLoader") for place in found)
    level = Level.MAY_KEEP if elsewhere else Level.HINT
    for place in loops:
        yield Finding(place.source.name, place.line, "no-loader", what.format("this training loop"), level)
    if not loops and not elsewhere:
        yield Finding(script, 1, "no-loader", what.format("the files that were read"), level)


def _calls(place: Place, *names: str) -> bool:
    return isinstance(place.node, ast.Call) and place.source.full(place.node.func).rpartition(".")[2] in names


def _names(place: Place, end: str) -> bool:
    if not isinstance(place.node, ast.Name | ast.Attribute):
        return False
    return f".{place.source.full(place.node)}".endswith(f".{end}")


def _of_arguments(arguments: Sequence[str]) -> Iterator[Finding]:
    for argument in arguments:
        option = argument.partition("=")[0]
        if option in _SHARDING_ARGUMENTS:
            what = f"{option} shards the model or its state over the workers"
            yield Finding("", 0, option.removeprefix("--").removeprefix("use_"), what)
