"""Prints docs/evidence/scripts.md's table of what `make test-torch-matrix` has found: python table.py."""

from __future__ import annotations

import json
from pathlib import Path

import catalogue
from catalogue import Script

FINDINGS = Path(__file__).resolve().parents[2] / "build" / "torch-matrix"
HEAD = (
    "| script | source | SHA-256 | resizes | samples missing / repeated | loss at the end"
    " | 99% interval of five runs with torchrun |\n|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Print a row for each script that has been run, and the number of resizes."""
    print(HEAD)
    for script in catalogue.read():
        path = FINDINGS / f"{script.name}.json"
        if path.exists():
            print(_row(script, json.loads(path.read_text())))
    counts = [json.loads(path.read_text())["resizes"] for path in FINDINGS.glob("*.json")]
    print(f"\n{sum(counts)} resizes in all.")


def _row(script: Script, found: dict) -> str:  # type: ignore[type-arg]
    samples = found["samples"]
    used = f"{samples['missing']} / {samples['repeated']}" if samples else "not recognisable"
    cells = (
        f"`{script.path.rpartition('/')[2]}` ({script.name})",
        f"{script.archive} (PyPI)" if script.archive else f"{script.repository} {script.commit[:10]}",
        f"`{script.sha256[:12]}`",
        "keeps its size" if script.keeps_size else str(found["resizes"]),
        used,
        f"{found['elastic_loss']:.4g}",
        f"{found['lowest']:.4g} to {found['highest']:.4g}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
