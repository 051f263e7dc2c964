"""The place of a demo: an output folder, and a lab during the story, whose daemons' logs are kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flexo_demos.elastic.signals import Interrupted, undisturbed_afterwards
from flexo_demos.elastic.tell import Teller
from flexo_lab import Lab, LabSpec, all_labs, bring_up, take_down
from flexo_lab.layout import Layout
from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn

LOGS = "lab-logs"
"""Name of the folder of the daemons' logs, in the demo's output folder."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of a demo."""

    out: Path
    name: str
    keep: bool
    as_json: bool
    yarn: bool = False
    """Whether the story is played on YARN."""
    web: bool = False
    """Whether web pages show the story while it is played."""


_LabT = TypeVar("_LabT")


def clear(out: Path, names: Sequence[str]) -> None:
    """Make the folder `out`, and remove only the files and folders `names` of an earlier demo in it."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def lab_of(spec: LabSpec, options: Options, teller: Teller, ready: Callable[[Lab], None]) -> Iterator[Lab]:
    """A Slurm lab that `ready` has prepared. See `kept_up`."""

    def up() -> Lab:
        lab = bring_up(spec, teller.now)
        ready(lab)
        return lab

    teller.say(
        f"A real Slurm cluster comes up: {spec.nodes} training nodes with {spec.gpus_per_node} GPUs each, "
        f"{spec.infer_nodes} for inference with {spec.gpus_per_infer_node}"
    )
    with kept_up(up, options, teller) as lab:
        teller.say("Slurm is up, and flexod watches it")
        yield lab


@contextmanager
def yarn_lab_of(spec: YarnLabSpec, options: Options, teller: Teller) -> Iterator[YarnLab]:
    """A YARN lab with flexod. See `kept_up`."""
    teller.say(
        f"A real YARN cluster comes up: {spec.nodes} training nodes and {spec.infer_nodes} inference servers "
        f"with {spec.gpus_per_node} GPUs each"
    )
    with kept_up(lambda: bring_up_yarn(spec, teller.now), options, teller) as lab:
        teller.say("YARN is up, and flexod watches it")
        yield lab


@contextmanager
def kept_up(up: Callable[[], _LabT], options: Options, teller: Teller) -> Iterator[_LabT]:
    """The lab that `up` brings up. It is taken down after the context, unless --keep. Raises LabError."""
    ours, keep = options.name not in all_labs(), options.keep
    try:
        with undisturbed_afterwards():
            lab = up()
            ours = True
            yield lab
    except Interrupted:
        keep = False
        raise
    finally:
        if ours:
            _leave(options, teller, keep=keep)


def _leave(options: Options, teller: Teller, *, keep: bool) -> None:
    """Copy the daemons' logs, and take the lab down in any state unless `keep`."""
    with suppress(OSError):
        shutil.copytree(Layout.of(options.name).logs, options.out / LOGS)
    if keep:
        teller.say(
            f"The lab stays: `flexo lab shell {options.name}` enters, `flexo lab down {options.name}` ends it"
        )
    else:
        teller.say("Taking the cluster down")
        take_down(options.name, teller.now)
