"""A soak's report says what was shown, and fails for anything that grows or must not happen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from soak import picture, report
from soak.meter import Sample
from soak.report import MEASURES, Soak

pytestmark = pytest.mark.thorough

QUIET = tuple(
    Sample(
        at=1.8e9 + 90 * number,
        memory_mib=71 + 0.1 * (number % 2),
        anonymous_mib=40.0,
        descriptors=38,
        threads=21,
        cycle_cpu_s=0.030 + 0.0001 * (number % 3),
        cycles=10,
        reference_cpu_s=0.004,
        event_store_bytes=4096,
        holds=(),
    )
    for number in range(33)
)
FLAT = Soak(1, 60.0, 10.0, 40, 200, 300, {"kill slurmctld": 9}, (), QUIET[:6], QUIET, 8192)
GROWTH = {
    "memory_mib": lambda sample, hours: replace(sample, memory_mib=sample.memory_mib + 4 * hours),
    "descriptors": lambda sample, hours: replace(sample, descriptors=sample.descriptors + int(3 * hours)),
    "threads": lambda sample, hours: replace(sample, threads=sample.threads + int(3 * hours)),
    "cycle_cpu_percent": lambda sample, hours: replace(
        sample, cycle_cpu_s=sample.cycle_cpu_s * (1 + 0.3 * hours)
    ),
}


def written(soak: Soak, folder: Path) -> dict[str, object]:
    report.write(soak, folder / "report.json")
    return json.loads((folder / "report.json").read_text())  # type: ignore[no-any-return]


def test_a_quiet_hour_is_flat_in_everything(tmp_path: Path) -> None:
    assert FLAT.well
    found = written(FLAT, tmp_path)
    assert found["minutes"] == 60.0
    assert found["violations"] == 0
    assert found["event_store"] == {"most_bytes": 4096, "budget_bytes": 8192}
    slopes = found["slopes"]
    assert isinstance(slopes, dict)
    assert slopes.keys() == {measure.name for measure in MEASURES}
    for slope in slopes.values():
        assert slope["flat"]
        assert slope["per_hour"] <= slope["upper95"] <= slope["bound"]


@pytest.mark.parametrize("name", GROWTH)
def test_each_thing_that_grows_is_found_and_is_the_only_one(name: str, tmp_path: Path) -> None:
    grown = tuple(GROWTH[name](sample, (sample.at - QUIET[0].at) / 3600) for sample in QUIET)
    soak = replace(FLAT, samples=grown)
    assert not soak.well
    assert [each for each, slope in soak.slopes.items() if not slope.flat] == [name]
    assert any(name in line and "GROWS" in line for line in report.table(soak))


def test_a_machine_that_becomes_slower_is_no_growth_of_flexod() -> None:
    slowed = tuple(
        replace(
            sample, cycle_cpu_s=sample.cycle_cpu_s * (1 + number / 33),
            reference_cpu_s=sample.reference_cpu_s * (1 + number / 33),
        )
        for number, sample in enumerate(QUIET)
    )  # fmt: skip
    assert replace(FLAT, samples=slowed).well


def test_a_violation_or_an_interruption_is_no_success(tmp_path: Path) -> None:
    violated = replace(FLAT, violations=("round 3: no job is lost: elastic1 (7)",))
    assert not violated.well
    assert written(violated, tmp_path)["violations"] == 1
    assert any("elastic1 (7)" in line for line in report.table(violated))
    assert not replace(FLAT, interrupted=True).well


def test_a_soak_without_samples_is_no_success_and_can_be_written_and_drawn(tmp_path: Path) -> None:
    empty = replace(FLAT, samples=(), warm_up=())
    assert not empty.well
    assert written(empty, tmp_path)["slopes"]["memory_mib"]["upper95"] is None  # type: ignore[index]
    picture.draw(empty, tmp_path / "empty.png")
    assert any("too few" in line for line in report.table(empty))


def test_the_bounds_are_those_that_were_promised() -> None:
    assert {measure.name: measure.bound for measure in MEASURES} == {
        "memory_mib": 2.0, "descriptors": 0.5, "threads": 0.5, "cycle_cpu_percent": 10.0
    }  # fmt: skip


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    picture.draw(FLAT, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
