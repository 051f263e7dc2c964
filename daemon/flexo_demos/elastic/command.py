"""The parts that all demos' commands share: options, signals, failures, exit codes.

Exit codes: 0 the story held, 1 it did not, 2 this machine cannot have a lab, 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from flexo_demos.elastic.report import CheckedSentence
from flexo_demos.elastic.signals import Interrupted, interruptible, undisturbed_afterwards
from flexo_demos.elastic.stage import Options, clear
from flexo_demos.elastic.story import StoryFailed
from flexo_demos.elastic.tell import Teller
from flexo_lab import BadSpec, LabError, LabExists, why_unavailable
from flexo_lab.yarn import why_unavailable as yarn_unavailable

REPORT = "report.json"
"""The name of every demo's report."""


def run(
    module: str,
    name: str,
    description: str,
    ours: Sequence[str],
    play: Callable[[Options, Teller], int],
    *,
    yarn_too: bool = False,
) -> int:
    """Run a demo. Returns the exit code: `play`'s, or another if `play` does not return.

    `module`: argument of `python -m`. `name`: default name of the lab and of the output folder.
    `ours`: names of files and folders that earlier runs may have written. `yarn_too`: it can be played on
    YARN.
    """
    options = _parse(module, name, description, yarn_too)
    if (reason := (yarn_unavailable if options.yarn else why_unavailable)()) is not None:
        print(f"The demo cannot run here: {reason}.", file=sys.stderr)
        return 2
    clear(options.out, ours)
    with interruptible(), Teller() as teller:
        try:
            return play(options, teller)
        except (LabExists, BadSpec) as error:
            teller.say(f"{error}.", "red")
            return 2
        except Interrupted as interrupted:
            teller.say(f"Ended by {interrupted}; nothing is left of the lab. Logs: {options.out}", "red")
            return 128 + interrupted.number


def failure_of(play: Callable[[], None], options: Options, teller: Teller) -> str:
    """Play a story. Returns "", or the reason if the story failed. Raises LabExists."""
    try:
        with undisturbed_afterwards():
            teller.say(f"Everything that happens is kept in {options.out}")
            play()
    except LabExists:
        raise
    except (StoryFailed, LabError) as error:
        return str(error)
    except subprocess.TimeoutExpired as error:
        return f"The cluster did not answer: {error}."
    return ""


def conclude(
    options: Options,
    teller: Teller,
    rows: Sequence[tuple[str, str]],
    sentences: Sequence[CheckedSentence],
    picture: str = "",
) -> int:
    """Print figures and sentences, and name what is written. Returns the exit code.

    The report is written already. `picture`: the name of the picture's file; "" if the demo draws none.
    """
    teller.table(rows)
    teller.judge(sentences)
    good = all(sentence.holds for sentence in sentences)
    written = [name for name in (picture, REPORT) if name and (options.out / name).exists()]
    verdict = "The story held." if good else "The story did not hold."
    teller.say(f"{verdict} See {' and '.join(written)} in {options.out}")
    if options.as_json:
        print((options.out / REPORT).read_text(), end="", flush=True)
    return 0 if good else 1


def _parse(module: str, name: str, description: str, yarn_too: bool) -> Options:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--out", type=Path, help="logs, picture and report go here")
    parser.add_argument("--name", default="", help="the lab's name")
    if yarn_too:
        parser.add_argument("--yarn", action="store_true", help="play it on YARN instead of Slurm")
        parser.add_argument("--web", action="store_true", help="show it on web pages; prints a link")
    parser.add_argument("--keep", action="store_true", help="leave the lab up (flexo lab down NAME ends it)")
    parser.add_argument("--json", action="store_true", help="print report.json at the end")
    arguments = parser.parse_args()
    yarn, web = yarn_too and arguments.yarn, yarn_too and arguments.web
    if yarn and web:
        parser.error("--web is allowed without --yarn")
    name = f"{name}-yarn" if yarn else name
    out = arguments.out or Path("build") / name
    return Options(out.resolve(), arguments.name or name, arguments.keep, arguments.json, yarn, web)
