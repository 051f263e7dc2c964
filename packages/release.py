"""make release: tags this commit as flexo's version, with the changelog's section as the text."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = "CHANGELOG.md"
VERSION_FILE = "daemon/flexo/__init__.py"

_VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)
_HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


class NotReady(Exception):
    """This commit cannot be released; the message says why, and what to do."""


def version_in(text: str) -> str:
    """The version that `VERSION_FILE` states. Raises NotReady."""
    found = _VERSION.findall(text)
    if len(found) != 1:
        raise NotReady(f'{VERSION_FILE} must have one line __version__ = "X.Y.Z" and has {len(found)}.')
    return str(found[0])


def notes_of(version: str, changelog: str) -> str:
    """The changelog's section on a version, without its heading. Raises NotReady."""
    sections = {}
    headings = list(_HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        end = following.start() if following else len(changelog)
        sections[heading["name"]] = (heading["date"], changelog[heading.end() : end].strip())
    if sections.get("Unreleased", (None, ""))[1]:
        raise NotReady(
            f"{CHANGELOG} still lists changes under Unreleased. Set their version in {VERSION_FILE} (now "
            f"{version}) and rename the section to [VERSION] - YYYY-MM-DD."
        )
    if version not in sections:
        raise NotReady(f"{CHANGELOG} has no section [{version}]; it has {', '.join(sections) or 'none'}.")
    date, notes = sections[version]
    if date is None:
        raise NotReady(f"{CHANGELOG}: section [{version}] has no date. Write ## [{version}] - YYYY-MM-DD.")
    if not notes:
        raise NotReady(f"{CHANGELOG}: section [{version}] is empty.")
    return notes


def tag(root: Path) -> str:
    """Tag the commit that is checked out, and return the tag's name. Raises NotReady."""
    version = version_in((root / VERSION_FILE).read_text())
    notes = notes_of(version, (root / CHANGELOG).read_text())
    if changed := _git(root, "status", "--porcelain"):
        raise NotReady(f"The work tree has changes. Commit them first:\n{changed}")
    name = f"v{version}"
    if _git(root, "tag", "--list", name):
        raise NotReady(f"The tag {name} exists already. Set a new version in {VERSION_FILE}.")
    # Without cleanup, git would take the headings of the notes for comments.
    _git(root, "tag", "--annotate", "--cleanup=whitespace", "--message", f"flexo {version}\n\n{notes}", name)
    return name


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotReady(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def main() -> int:
    """Tag the commit. Returns 0, or 1 if the commit is not ready."""
    argparse.ArgumentParser(prog="make release", description=__doc__).parse_args()
    try:
        name = tag(ROOT)
    except NotReady as error:
        print(error, file=sys.stderr)
        return 1
    print(f"This commit is {name}. Publish it: git push origin {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
