"""Where a demo plays: an empty folder, and a lab for the time of the story, whose daemons' logs are kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flexo_demos.elastic.signals import Interrupted, undisturbed_afterwards
from flexo_demos.elastic.tell import Teller
from flexo_lab import Lab, LabSpec, all_labs, bring_up, take_down
from flexo_lab.layout import Layout

LOGS = "lab-logs"
"""What the folder of the daemons' logs is called in the demo's own."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of a demo."""

    out: Path
    name: str
    keep: bool
    as_json: bool


def clear(out: Path, names: Sequence[str]) -> None:
    """Remove what an earlier demo wrote under these names, and nothing else."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def lab_of(spec: LabSpec, options: Options, teller: Teller, ready: Callable[[Lab], None]) -> Iterator[Lab]:
    """A lab, once it is `ready`; taken down afterwards, unless it is to be kept. Raises LabError."""
    teller.say(
        f"A real Slurm cluster comes up: {spec.nodes} training nodes with {spec.gpus_per_node} GPUs each, "
        f"{spec.infer_nodes} for inference with {spec.gpus_per_infer_node}"
    )
    ours, keep = spec.name not in all_labs(), options.keep
    try:
        with undisturbed_afterwards():
            lab = bring_up(spec, teller.now)
            ours = True
            ready(lab)
            teller.say("Slurm is up, and flexod watches it")
            yield lab
    except Interrupted:
        keep = False
        raise
    finally:
        if ours:
            _leave(options, teller, keep=keep)


def _leave(options: Options, teller: Teller, *, keep: bool) -> None:
    """Keep the daemons' logs, and take the lab down, whatever state it is in."""
    with suppress(OSError):
        shutil.copytree(Layout.of(options.name).logs, options.out / LOGS)
    if keep:
        teller.say(
            f"The lab stays: `flexo lab shell {options.name}` enters, `flexo lab down {options.name}` ends it"
        )
    else:
        teller.say("Taking the cluster down")
        take_down(options.name, teller.now)
