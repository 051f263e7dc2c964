"""The interface of the story to the cluster that it is played on: jobs, submitted and seen as users do."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from flexo_demos.elastic.plot import Plot
from flexo_demos.elastic.queue import QueuedJob


class Servers(Protocol):
    """The inference cluster's servers, as the story moves their traffic."""

    nodes: tuple[str, ...]
    """Their names, for people."""
    job_id: int
    """The inference application's number."""

    def want(self) -> float:
        """Traffic rises: inference asks for all of them. Returns the time, in seconds since the epoch."""
        ...

    def leave(self) -> None:
        """Traffic falls: inference gives all of them back."""
        ...

    @property
    def served_at(self) -> float | None:
        """When inference had the last one that it had asked for; None: it has not all of them."""
        ...


class DemoCluster(Protocol):
    """A cluster that is up, with flexod. Methods raise LabError and subprocess.TimeoutExpired."""

    software: str
    """What manages it, for people."""
    nodes: tuple[str, ...]
    """Names of the training nodes, for people."""
    servers: Servers | None
    """Inference servers that flexod lends; None: the story has none."""

    def version(self) -> str:
        """The release of its software, as its controller reports it."""
        ...

    def elastic_command(self, plot: Plot) -> str:
        """What a user types to submit the elastic job, without the script's own arguments."""
        ...

    def submit_elastic(self, plot: Plot, out: Path) -> int:
        """Submit the elastic job, whose logs go to `out`/elastic; return its id."""
        ...

    def rigid_command(self, plot: Plot) -> str:
        """What a user types to submit the rigid job, without its script."""
        ...

    def submit_rigid(self, plot: Plot, out: Path, shell: str) -> int:
        """Submit the rigid job, which runs `shell`; return its id."""
        ...

    def jobs(self) -> tuple[QueuedJob, ...]:
        """All jobs that the cluster shows now."""
        ...
