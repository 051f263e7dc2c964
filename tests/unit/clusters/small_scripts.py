"""Small shell scripts that stand in the place of Slurm's commands."""

from __future__ import annotations

from pathlib import Path


def script(folder: Path, name: str, text: str) -> None:
    """Have the command `name`, in `folder`, run `text`."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
