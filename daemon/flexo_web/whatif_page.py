"""The page of what-ifs: reports that the site has put into a folder, and the commands that make one.

flexo-web computes nothing here. A simulation takes minutes of a core, so people run it themselves.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.html")
_MOST: Final = 100
MOST_BYTES: Final = 20 << 20
"""The largest report that is shown."""
POLICIES: Final = ("lyra", "elastic-tiresias")
SHARES: Final = ("5", "20", "50", "100")
SACCT: Final = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --allocations --duplicates --noconvert --parsable2"
    " --starttime=now-30days --format=JobID,JobIDRaw,Cluster,User,Account,Partition,Submit,Eligible,Start,"
    "End,ElapsedRaw,State,TimelimitRaw,ReqTRES,AllocTRES,NNodes,NodeList,JobName > jobs.txt"
)
"""The command that dumps Slurm's accounting (docs/howto/what-if.md)."""
YARN: Final = "flexo yarn history > jobs.txt"
_LONGEST: Final = 64


@dataclass(frozen=True, slots=True)
class Report:
    """A report that can be opened."""

    name: str
    changed_at: float


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody chose in the form. Anything that is not allowed becomes the default."""

    software: str = "slurm"
    policy: str = POLICIES[0]
    share: str = "20"
    partition: str = ""
    """"": all partitions."""

    @classmethod
    def of(cls, said: Mapping[str, str]) -> Question:
        """The question in a form's fields."""
        return cls(
            software="yarn" if said.get("software") == "yarn" else "slurm",
            policy=policy if (policy := said.get("policy", "")) in POLICIES else POLICIES[0],
            share=share if (share := said.get("share", "")) in SHARES else "20",
            partition=said.get("partition", "").strip()[:_LONGEST],
        )

    @property
    def commands(self) -> tuple[str, str]:
        """The commands that dump the accounting, and that make the report."""
        on_yarn = self.software == "yarn"
        words = ["flexo", "whatif", "--yarn" if on_yarn else "--sacct", "jobs.txt"]
        words += ["--policy", self.policy, "--elastic-share", f"{self.share}%"]
        words += ["--partition", self.partition] if self.partition else []
        return (YARN if on_yarn else SACCT), shlex.join([*words, "--report", "whatif.html"])


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The whole page."""

    folder: str
    """Where the site puts reports; "": nowhere."""
    reports: tuple[Report, ...]
    """Newest first."""
    question: Question
    policies: tuple[str, ...] = POLICIES
    shares: tuple[str, ...] = SHARES


def what_if_page(folder: Path | None, question: Question) -> WhatIf:
    """The page. `folder`: of the site's reports; None: the site has set none."""
    return WhatIf(str(folder or ""), reports_in(folder), question)


def reports_in(folder: Path | None) -> tuple[Report, ...]:
    """The newest reports. A folder that cannot be read has none."""
    found = []
    try:
        for path in folder.iterdir() if folder else ():
            if _NAME.fullmatch(path.name) and path.is_file():
                found.append(Report(path.name, path.stat().st_mtime))
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda report: (-report.changed_at, report.name))[:_MOST])


def report(folder: Path | None, name: str) -> bytes | None:
    """The report `name`; None if there is none, or if it is too large."""
    if folder is None or not _NAME.fullmatch(name):
        return None
    try:
        path = folder / name
        return path.read_bytes() if path.stat().st_size <= MOST_BYTES else None
    except OSError:
        return None
