"""Checks several flexods: whether each answers and one is active, and whether they share lease and event
store."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flexo.doctor.finding import Finding, ok, problem, warning
from flexo.doctor.flexod import FlexodAnswer

_FAR: Final = "docs/howto/high-availability.md"


def check_active(answers: Mapping[str, FlexodAnswer]) -> list[Finding]:
    """Check that exactly one flexod is active. `answers`: the answer of the flexod at each address."""
    check = "availability.active"
    active = [address for address, answer in answers.items() if not answer.silent and not answer.stands_by]
    waiting = [address for address, answer in answers.items() if answer.stands_by]
    if len(active) == 1:
        beside = f", {', '.join(waiting)} {'stand' if len(waiting) > 1 else 'stands'} by" if waiting else ""
        return [ok(check, f"the flexod at {active[0]} is active{beside}")]
    if not active:
        said = "no flexod is active"
        return [
            problem(check, said, "`flexo status` and `journalctl -u flexod` on each of the hosts say why.")
        ]
    said = f"the flexods at {' and '.join(active)} all say that they are active"
    fix = f"[high_availability] has to say the same on all hosts, and lease the same place ({_FAR})."
    return [problem(check, said, fix)]


def check_lease_folder(folder: Path, event_store: Path) -> list[Finding]:
    """Check that `folder` can hold the lease, and that the event store is in it, too."""
    check = "availability.folder"
    if not folder.is_dir():
        fix = f"`install -d -o flexo -g flexo -m 750 {folder}` on the shared file system"
        return [problem(check, f"there is no folder {folder} for the lease", fix)]
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH:
        said = f"everybody may write {folder}, and so decide which flexod is active"
        return [problem(check, said, f"`chmod 750 {folder}`")]
    if why := _no_links(folder):
        said = f"{folder} cannot hold the lease: {why}"
        return [problem(check, said, "A folder on a file system with hard links, as NFS and Lustre have.")]
    findings = [ok(check, f"{folder} can hold the lease")]
    if folder != event_store.parent and folder not in event_store.parents:
        said = (
            f"the event store {event_store} is not in the shared folder: what only it knows is not taken over"
        )
        fix = f'flexo.toml: [event_store] path = "{folder}/journal.sqlite" on all hosts.'
        findings.append(warning("availability.journal", said, fix))
    return findings


def _no_links(folder: Path) -> str:
    """The reason why no hard link can be made in `folder`; "" if one can, or if this account may not try."""
    if not os.access(folder, os.W_OK):
        return ""
    first, second = (folder / f".{secrets.token_hex(8)}" for _ in range(2))
    try:
        first.touch()
        second.hardlink_to(first)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)
    return ""
