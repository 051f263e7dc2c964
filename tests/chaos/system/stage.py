"""A lab on which connections can be cut, with an observer beside it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.system import bounds
from chaos.system.link import Link
from chaos.system.plan import GPUS_PER_NODE, INFERENCE_NODES, TRAIN_NODES, Target
from flexo_lab import Lab, LabSpec, bring_up

_TESTS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stage:
    """The lab, its two connections that can be cut, and where the observer writes."""

    lab: Lab
    links: Mapping[Target, Link]
    observed: Path

    @property
    def daemon_address(self) -> str:
        """Where jobs find flexod: through the link."""
        return f"127.0.0.1:{self.links[Target.LEADERS_LINK].port}"


@contextlib.contextmanager
def stage(seed: int) -> Iterator[Stage]:
    """A lab that lends servers, for one run."""
    with cluster(f"chaos{os.getpid()}-{seed}") as (lab, links):
        lab.start_flexod()
        with observed(lab, links, lab.directory / "observed.jsonl") as place:
            yield place


@contextlib.contextmanager
def cluster(name: str) -> Iterator[tuple[Lab, Mapping[Target, Link]]]:
    """That lab and its connections; flexod is not started yet."""
    spec = LabSpec(
        name=name,
        nodes=TRAIN_NODES,
        gpus_per_node=GPUS_PER_NODE,
        infer_nodes=INFERENCE_NODES,
        loans=True,
        flexod=False,
    )
    lab = bring_up(spec)
    links = {Target.LEADERS_LINK: Link(lab.ports.flexod), Target.SLURM_LINK: Link(lab.ports.slurmctld)}
    try:
        _lead_flexod_through(lab, links[Target.SLURM_LINK])
        yield lab, links
    finally:
        lab.down()
        for link in links.values():
            link.close()


@contextlib.contextmanager
def observed(lab: Lab, links: Mapping[Target, Link], path: Path) -> Iterator[Stage]:
    """For as long as that, an observer writes to `path`."""
    with _observer(lab, path):
        yield Stage(lab, links, path)


def _lead_flexod_through(lab: Lab, link: Link) -> None:
    """flexod gets a slurm.conf of its own, in which slurmctld's port is the link's, and short leases."""
    own = lab.directory / "slurm-flexod.conf"
    text = lab.layout.slurm_conf.read_text()
    own.write_text(re.sub(r"^SlurmctldPort=\d+$", f"SlurmctldPort={link.port}", text, flags=re.MULTILINE))
    toml = lab.layout.flexo_toml.read_text()
    toml = toml.replace(f'conf = "{lab.layout.slurm_conf}"', f'conf = "{own}"')
    toml = toml.replace("[controller]", f"[controller]\nlease_s = {bounds.TIME_LIMIT_S}")
    lab.layout.flexo_toml.write_text(toml)


@contextlib.contextmanager
def _observer(lab: Lab, path: Path) -> Iterator[None]:
    """The observer, for as long as that."""
    command = [sys.executable, "-m", "chaos.system.observer", str(path)]
    environment = lab.environment() | {"PYTHONPATH": str(_TESTS)}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
