"""Has one of Slurm's own commands read a slurm.conf, where they are installed, and reports what it refuses.

A command reads slurm.conf before it does anything else, `sinfo --version` too, which then asks no daemon.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from flexo.clusters.base import ClusterUnreachable
from flexo.clusters.slurm.commands import CommandFailed, SlurmCommands
from flexo.doctor.finding import Finding, not_checked, ok, problem, warning
from flexo.doctor.slurm_conf import Line

_CHECK: Final = "slurm.reading"
_READ: Final = ("sinfo", "--version")
_TIMEOUT_S: Final = 10.0
_GOOD: Final = "ClusterName=trial\nSlurmctldHost=localhost\n"
_BAD: Final = f"{_GOOD}ThisKeyIsUnknown=1\n"
_LAST_WORDS: Final = "unable to process configuration file"
"""With these words a command gives up. What is wrong stands in the lines before."""
_OF_THIS_HOST: Final = ("Invalid user for", "PluginDir", "plugin name")
"""Parts of errors that another host may not have: an account or a plugin that is missing here."""


def check_reading(path: Path, lines: Sequence[Line]) -> Finding:
    """Have Slurm read slurm.conf at `path`, whose lines are these. May take some seconds."""
    try:
        if not shutil.which(_READ[0]):
            raise ClusterUnreachable("Slurm's commands are not on this host")
        release = _release()
    except (ClusterUnreachable, CommandFailed, OSError) as error:
        return not_checked(
            _CHECK,
            f"Slurm's own reading, which finds unknown keys and values: {error}",
            "Run the same command on a host that has Slurm's commands, in the release of slurmctld.",
        )
    try:
        _read(path.absolute())
    except CommandFailed as failure:
        return _refused(failure.lines, lines, release)
    except ClusterUnreachable as error:
        return not_checked(_CHECK, f"Slurm's own reading: {error}", "Run the same command again.")
    return ok(_CHECK, f"{release}: its commands read the file")


def _release() -> str:
    """The release of Slurm's commands here. Raises ClusterUnreachable if they are not there or do not read
    slurm.conf, and CommandFailed if they do not work."""
    with TemporaryDirectory() as folder:
        good, bad = Path(folder, "good.conf"), Path(folder, "bad.conf")
        good.write_text(_GOOD)
        bad.write_text(_BAD)
        release = _read(good).strip()
        try:
            _read(bad)
        except CommandFailed:
            return release
    raise ClusterUnreachable(f"`{' '.join(_READ)}` of {release} does not read slurm.conf")


def _read(path: Path) -> str:
    return SlurmCommands(path, _TIMEOUT_S).run(_READ, {})


def _refused(said: Sequence[str], lines: Sequence[Line], release: str) -> Finding:
    errors = [re.sub(r"^\w+: (?:(?:error|fatal): )?", "", line) for line in said]
    reasons = [each for each in errors if _LAST_WORDS not in each.lower()] or errors
    text = "; ".join(dict.fromkeys(reasons))
    place = _place(text, lines)
    what = f"{place}: {text}" if place else text
    if any(words in text for words in _OF_THIS_HOST):
        return warning(
            _CHECK,
            f"{release} on this host does not read the file: {what}",
            "Run the same command on slurmctld's host. If it says the same there, slurmctld does not start.",
        )
    return problem(
        _CHECK,
        f"{release} does not start with the file: {what}",
        "Correct it; slurm.conf(5) of your release has all keys and values.",
    )


def _place(text: str, lines: Sequence[Line]) -> str:
    """The place of the line that has more words of the error than any other; "" if no line or several do."""
    named = set(re.findall(r"[\w/.-]+", text))
    having = {line.place: len(named & line.written) for line in lines}
    most = max(having.values(), default=0)
    found = [place for place, count in having.items() if count == most]
    return found[0] if most and len(found) == 1 else ""
