"""Reports what the runs gave: report.json, and the table in docs/reference/slurm-releases.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from matrix.parts import FULL

BEGIN, END = "<!-- made by make test-slurm-matrix -->", "<!-- end of what is made -->"
NOT_ASKED = "not asked for"
"""In place of pyslurm's version, where no part that was run wants it."""


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """Of one part on one release."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: list[str] = field(default_factory=list)
    """A line for each test that failed."""
    commit: str = ""
    """Of flexo, of which it was run."""


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """Of one folder system."""

    slurm: str
    """What `slurmctld -V` says; "" where there was no system."""
    day: str
    """When, as 2026-11-22."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of Debian's packages."""
    python: str = ""
    pyslurm: str = ""
    made_in_s: float = 0.0
    """What making the folder took, when it was made."""
    size_mb: int = 0
    session_s: float = 0.0
    parts: dict[str, PartOutcome] = field(default_factory=dict)
    why_not: str = ""
    """Why nothing was tested."""

    @property
    def well(self) -> bool:
        """Everything that was run passed."""
        return not self.why_not and all(part.failed == 0 and part.passed for part in self.parts.values())


Report = dict[str, SuiteOutcome]
"""By suite."""


def read(path: Path) -> Report:
    """What earlier runs left; empty if there is nothing that can be read."""
    try:
        data = json.loads(path.read_text())["suites"]
        return {name: _outcome(suite) for name, suite in data.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write(path: Path, report: Report) -> None:
    """Replace `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    suites = {name: {**asdict(suite), "well": suite.well} for name, suite in report.items()}
    fresh.write_text(json.dumps({"suites": suites}, indent=2) + "\n")
    fresh.replace(path)


def merged(before: SuiteOutcome | None, now: SuiteOutcome) -> SuiteOutcome:
    """`now`, with the parts that were run earlier on the very same versions and are not run now."""
    if before is None or now.why_not or before.versions != now.versions:
        return now
    pyslurm = before.pyslurm if now.pyslurm == NOT_ASKED else now.pyslurm
    return replace(now, pyslurm=pyslurm, parts={**before.parts, **now.parts})


def table(report: Report) -> str:
    """Markdown: a column for each suite, a row for each part."""
    names = list(report)
    head = ["", *(f"Debian {name}" for name in names)]
    rows = [
        ["Slurm", *(_cell(suite, _version(suite, "slurmctld")) for suite in report.values())],
        ["MUNGE", *(_cell(suite, _version(suite, "munge")) for suite in report.values())],
        ["MariaDB", *(_cell(suite, _version(suite, "mariadb-server-core")) for suite in report.values())],
        ["Python", *(_cell(suite, suite.python) for suite in report.values())],
        ["pyslurm", *(_cell(suite, suite.pyslurm) for suite in report.values())],
        ["tested on", *(suite.day for suite in report.values())],
        ["flexo's commit", *(_cell(suite, _commits(suite)) for suite in report.values())],
        *([part.what, *(_came_of(suite, part.name) for suite in report.values())] for part in FULL),
        ["folder on disk, made in", *(_cell(suite, _cost(suite)) for suite in report.values())],
    ]
    lines = [_line(head), _line(["---"] * len(head)), *map(_line, rows)]
    notes = [f"* {name}: {suite.why_not}" for name, suite in report.items() if suite.why_not]
    notes += [
        f"* {name}, {part}: {failure.splitlines()[0]}"
        for name, suite in report.items()
        for part, outcome in suite.parts.items()
        for failure in outcome.failures
    ]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def put_into(page: Path, report: Report) -> None:
    """Replace what stands between the two marks. Raises ValueError where they are missing."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the lines '{BEGIN}' and '{END}' between which the table stands")
    page.write_text(f"{before}{begin}\n\n{table(report)}\n\n{end}{after}")


def _outcome(suite: Mapping[str, object]) -> SuiteOutcome:
    fields = {name: value for name, value in suite.items() if name != "well"}
    parts = {name: PartOutcome(**part) for name, part in fields.pop("parts").items()}  # type: ignore[attr-defined]
    return SuiteOutcome(**fields, parts=parts)  # type: ignore[arg-type]


def _cell(suite: SuiteOutcome, text: str) -> str:
    return "not there" if suite.why_not else text


def _version(suite: SuiteOutcome, package: str) -> str:
    """Without Debian's epoch."""
    return suite.versions.get(package, "?").rpartition(":")[2]


def _came_of(suite: SuiteOutcome, name: str) -> str:
    part = suite.parts.get(name)
    if part is None:
        return "not tested"
    skipped = f", {part.skipped} skipped" if part.skipped else ""
    failed = f", **{part.failed} failed**" if part.failed else ""
    return f"{part.passed} passed{failed}{skipped} ({part.seconds:.0f} s)"


def _commits(suite: SuiteOutcome) -> str:
    """Several where parts were run at different times."""
    return ", ".join(sorted({part.commit or "not known" for part in suite.parts.values()}))


def _cost(suite: SuiteOutcome) -> str:
    return f"{suite.size_mb} MB, {suite.made_in_s:.0f} s"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
