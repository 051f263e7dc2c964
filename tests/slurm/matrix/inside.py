"""Runs in a folder system: installs flexo, compiles the plugin against that Slurm, runs the tests, tells.

Reads /out/parts.json, writes /out/result.json. Uses nothing but the standard library and what it starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

OUT, FLEXO = Path("/out"), Path("/flexo")
PLUGIN = FLEXO / "slurm_plugin"
SHOWN_OF_FAILURE = 400


def main() -> None:
    release = said("slurmctld", "-V")
    install()
    outcome = {
        "slurm": release,
        "python": sys.version.split()[0],
        "parts": {part["name"]: run_part(part) for part in json.loads((OUT / "parts.json").read_text())},
    }
    fresh = OUT / "result.new"
    fresh.write_text(json.dumps(outcome, indent=2) + "\n")
    fresh.rename(OUT / "result.json")


def install() -> None:
    """flexo's wheels in the virtual environment, the plugin compiled where a lab looks for it."""
    wheels = map(str, FLEXO.glob("flexo*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *wheels]
    subprocess.run(pip, check=True)
    subprocess.run(["make", "-C", str(PLUGIN)], check=True)
    # a lab takes the plugin from beside flexo: slurm_plugin/ of a checkout
    Path(sysconfig.get_path("purelib")).parent.joinpath("slurm_plugin").symlink_to(PLUGIN)


def run_part(part: dict[str, object]) -> dict[str, object]:
    """Counts, seconds and what failed, of one part."""
    name, began = str(part["name"]), time.monotonic()
    if part["command"]:
        with (OUT / f"{name}.log").open("w") as log:
            code = subprocess.run(part["command"], cwd=FLEXO, stdout=log, stderr=subprocess.STDOUT).returncode
        counts = {"passed": int(code == 0), "failed": int(code != 0), "skipped": 0, "failures": []}
        return {**counts, "seconds": round(time.monotonic() - began, 1)}
    xml = OUT / f"{name}.xml"
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={xml}", *part["tests"]]
    with (OUT / f"{name}.log").open("w") as log:
        subprocess.run(pytest, cwd=FLEXO, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
    return {**counts_of(xml), "seconds": round(time.monotonic() - began, 1)}


def counts_of(xml: Path) -> dict[str, object]:
    """What pytest says of its tests; a run that said nothing has failed."""
    if not xml.exists():
        return {"passed": 0, "failed": 1, "skipped": 0, "failures": ["pytest did not get to its tests"]}
    passed, skipped, failures = 0, 0, []
    for case in ElementTree.parse(xml).iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad:
            failures.append(f"{case.get('name')}: {(bad[0].get('message') or '')[:SHOWN_OF_FAILURE]}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return {"passed": passed, "failed": len(failures), "skipped": skipped, "failures": failures}


def said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
