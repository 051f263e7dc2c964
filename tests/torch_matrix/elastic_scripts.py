"""Public scripts by others are elastic, unmodified: no sample is missed, and they end as good as torchrun's.

Each script's findings go to build/torch-matrix/NAME.json (table.py makes a page of them).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import catalogue  # noqa: E402
import runs  # noqa: E402
import sources  # noqa: E402
from judgement import SEEDS, Samples, compare, final_loss, prediction_interval  # noqa: E402

BUILD = HERE.parents[1] / "build" / "torch-matrix"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a script's runs have shown."""

    script: str
    resizes: int
    steps: int
    fixed_losses: tuple[float, ...]
    lowest: float
    highest: float
    elastic_loss: float
    samples: Samples | None
    """None if they cannot be recognised."""
    keeps_size: str
    """Why it is not elastic; "" if it is."""


def source_of(script: catalogue.Script, request: pytest.FixtureRequest) -> Path:
    """The folder of the script's source. The test is skipped if there is none."""
    home = request.config.getoption("--scripts")
    home.mkdir(parents=True, exist_ok=True)
    try:
        return sources.source_of(script, home.resolve())
    except sources.NotThere as error:
        pytest.skip(str(error))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("script", catalogue.read(), ids=lambda script: script.name)
def test_it_is_elastic(script: catalogue.Script, request: pytest.FixtureRequest) -> None:
    """It grows and shrinks three times and loses a worker, and its final loss is one of a fixed size's."""
    source = source_of(script, request)
    material = BUILD / "material" / script.material
    folder = BUILD / "runs" / script.name
    fixed = [
        runs.at_fixed_size(script, source, material, folder / f"fixed{seed}", seed) for seed in range(SEEDS)
    ]
    place = runs.prepare(script, source, material, folder / "elastic")
    run = runs.elastic(script, place, request.config.getoption("--changes"))
    losses = tuple(final_loss(steps) for steps in fixed)
    lowest, highest = prediction_interval(losses)
    samples = compare(fixed, run.steps, run.killed) if script.epochs else None
    finding = Finding(
        script.name, run.resizes, len(run.steps), losses, lowest, highest, final_loss(run.steps), samples,
        script.keeps_size,
    )  # fmt: skip
    (BUILD / f"{script.name}.json").write_text(json.dumps(asdict(finding), indent=1))
    assert lowest <= finding.elastic_loss <= highest
    if samples:
        assert samples.missing <= samples.unlogged
        assert samples.repeated <= script.epochs * (runs.WORKERS + 1)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "script", [each for each in catalogue.read() if each.longer], ids=lambda script: script.name
)
def test_it_is_resized_many_times(script: catalogue.Script, request: pytest.FixtureRequest) -> None:
    """It grows and shrinks on and on, and loses a worker now and then. It never stands still.

    The number of resizes in build/torch-matrix/NAME.many.json is that of all runs.
    """
    source = source_of(script, request)
    material = BUILD / "material" / script.material
    place = runs.prepare(script, source, material, BUILD / "runs" / script.name / "many")
    resizes = runs.many_resizes(script, place, request.config.getoption("--many"))
    found = BUILD / f"{script.name}.many.json"
    before = json.loads(found.read_text())["resizes"] if found.exists() else 0
    found.write_text(json.dumps({"resizes": before + resizes}))
    assert resizes >= 2 * request.config.getoption("--many")
