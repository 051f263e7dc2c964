"""The outcomes of simulations, written as they come: a bench that was ended goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

import flexo
import flexo_simulation
from flexo_bench.price.cases import Case
from flexo_simulation.results import SimulatedRun

_DECIDING: Final = ("policies", "scalability", "clusters/simulated", "model")
"""The parts of flexo on which a simulation rests, besides the simulator itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one simulation."""

    jobs: int
    finished: int
    jct_s: float
    """Mean completion time of the jobs that finished."""
    p99_jct_s: float
    makespan_s: float
    worst_fairness: float
    """The largest finish-time fairness of a job (Themis)."""
    unfair_share: float
    """The share of jobs whose finish-time fairness is above 1."""
    gpu_h: float
    """GPU hours that jobs held, paying for changes included."""
    changes: int
    """Changes and preemptions of running jobs."""
    wall_s: float
    """The duration of the simulation itself."""

    @classmethod
    def of(cls, run: SimulatedRun) -> Outcome:
        """The figures of a simulation that has ended."""
        result = run.result
        return cls(
            jobs=result.jobs,
            finished=result.finished,
            jct_s=result.avg_jct_s,
            p99_jct_s=result.p99_jct_s,
            makespan_s=result.makespan_s,
            worst_fairness=result.worst_fairness,
            unfair_share=result.unfair_share,
            gpu_h=sum(record.gpu_s for record in run.records) / 3600.0,
            changes=result.resizes + result.preemptions,
            wall_s=result.wall_s,
        )


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file."""

    code: str
    case: Case
    outcome: Outcome


_LINE: Final = TypeAdapter(_Line)


class Runs:
    """The outcomes in one file, a JSON object a line. Those of another version of the code do not count."""

    def __init__(self, path: Path, code: str) -> None:
        self._path = path
        self._code = code
        self._known: dict[Case, Outcome] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                read = _LINE.validate_json(line)
            except ValidationError:
                continue  # the line on which an earlier bench was ended, or one of an earlier release
            if read.code == code:
                self._known[read.case] = read.outcome

    @property
    def known(self) -> Mapping[Case, Outcome]:
        """All outcomes so far."""
        return self._known

    def add(self, case: Case, outcome: Outcome) -> None:
        """Write one more outcome."""
        self._known[case] = outcome
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(_Line(self._code, case, outcome))) + "\n")


def code_now() -> str:
    """A digest of the code that decides what a simulation finds."""
    roots = [Path(flexo.__file__).parent / part for part in _DECIDING]
    roots.append(Path(flexo_simulation.__file__).parent)
    digest = blake2b(digest_size=8)
    for path in sorted(path for root in roots for path in root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
