"""Figures of GPU sharing: how they are judged, and that those in the docs are stale once the layer has
changed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from flexo_bench.sharing import memory, report, results
from flexo_bench.sharing.results import DUTY, GATE, UNTHROTTLED, Figures, Overhead, Turn

PAGE = Path(__file__).resolve().parents[3] / "docs" / "evidence" / "sharing.md"
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| \d{4}-\d\d-\d\d \| `([0-9a-f]{16})`([^|]*) \|", re.MULTILINE)


def figures(losses: dict[str, float], rounds: int = 7) -> Figures:
    made = Figures("pretended", "2.13", "make bench-sharing", "2026-01-01")
    for way, loss in losses.items():
        for each in range(rounds):
            made.add("a beside b", way, Turn(loss + each / 1000, 0.5))
    return made


def test_a_measurement_in_the_docs_that_another_layer_made_is_marked_stale() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert rows, "the docs have no figures"
    for digest, mark in rows:
        assert (digest != results.layer_hash()) == ("(stale)" in mark), (
            f"{digest}: now {results.layer_hash()}"
        )


def test_the_hash_changes_with_any_source_of_the_layer(tmp_path: Path) -> None:
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / "a.py").write_text("1")
    first = results.layer_hash(tmp_path)
    (tmp_path / "layer" / "a.c").write_text("1")
    second = results.layer_hash(tmp_path)
    (tmp_path / "layer" / "a.py").write_text("2")
    assert len({first, second, results.layer_hash(tmp_path)}) == 3
    assert len(first) == 16


@pytest.mark.parametrize(
    ("losses", "ordered"),
    [
        ({UNTHROTTLED: 0.4, DUTY: 0.2, GATE: 0.1}, True),
        ({UNTHROTTLED: 0.4, DUTY: 0.1, GATE: 0.2}, False),
        ({UNTHROTTLED: 0.2, DUTY: 0.2, GATE: 0.1}, False),
        ({UNTHROTTLED: 0.4, GATE: 0.1}, False),
    ],
)
def test_ways_are_in_order_if_each_loses_less_than_the_one_before(
    losses: dict[str, float], ordered: bool
) -> None:
    assert figures(losses).ordered("a beside b") is ordered


def test_the_file_has_medians_by_pair_and_way_and_is_written_as_a_whole(tmp_path: Path) -> None:
    report.write(figures({UNTHROTTLED: 0.4, DUTY: 0.2, GATE: 0.1}), tmp_path / "build" / "sharing.json")
    told = json.loads((tmp_path / "build" / "sharing.json").read_text())
    assert told["pairs"]["a beside b"]["gate"]["guarantee_slowdown"] == pytest.approx(0.103)
    assert told["pairs"]["a beside b"]["gate"]["opportunistic_share"] == 0.5
    assert told["layer_hash"] == results.layer_hash()
    assert {"device", "overhead_unshared"} <= told.keys()
    assert [each.name for each in (tmp_path / "build").iterdir()] == ["sharing.json"]


def test_the_99th_percentile_is_that_of_all_rounds_and_other_than_the_median_knows_rare_steps() -> None:
    made = Figures("pretended", "2.13", "make bench-sharing", "2026-01-01")
    for number in range(10):
        rare = 0.3 if number % 2 else 0.1
        made.add("a beside b", GATE, Turn(0.0, 0.5, (*[0.1] * 19, rare), (0.1,) * 20))
    told = made.as_json()["pairs"]["a beside b"]["gate"]
    assert told["p99"] == pytest.approx(2.0)
    assert (told["guarantee_slowdown"], told["rounds"][1]["longest_step_s"]) == (0.0, 0.3)
    assert "+200.0%" in "\n".join(report.table(made))


def test_a_few_steps_have_no_99th_percentile() -> None:
    made = Figures("pretended", "2.13", "make bench-sharing", "2026-01-01")
    made.add("a beside b", GATE, Turn(0.0, 0.5, (0.1,) * 99, (0.1,) * 99))
    assert made.p99("a beside b", GATE) is None
    made.add("a beside b", GATE, Turn(0.0, 0.5, (0.1,), (0.1,)))
    assert made.p99("a beside b", GATE) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ((0.001, 0.002, 0.001, 0.002, 0.001, 0.002), "reached"),
        ((0.011, 0.012, 0.011, 0.012, 0.011, 0.012), "missed"),
        ((-0.1, 0.1, -0.1, 0.1, -0.1, 0.1), "undecided"),
        ((0.0,), "undecided"),
    ],
)
def test_overhead_is_judged_by_the_lower_end_of_an_interval_that_is_narrow(
    rounds: tuple[float, ...], verdict: str
) -> None:
    assert Overhead(rounds).verdict().startswith(verdict)


def test_goals_on_memory_are_judged_by_the_median_once_they_are_measured() -> None:
    made = figures({GATE: 0.1})
    assert made.memory_verdicts() == {}
    made.memory = {results.TRIM: [9.0, 30.0, 10.0], results.GROWTH: [116.0]}
    told = made.as_json()
    assert told["memory"]["trim_ms"] == {"median": 10.0, "rounds": [9.0, 30.0, 10.0]}
    assert told["goals"] == {
        "16 GB of cache back in 17 ms": "reached: 10.0 ms",
        "growth by 16 GB in 115 ms": "missed: 116.0 ms",
    }
    assert "goal: growth by 16 GB in 115 ms: missed: 116.0 ms" in report.table(made)


def test_each_round_trims_all_that_was_allocated_and_then_grows_again() -> None:
    did: list[object] = []

    class Obedient:
        def obey(self, limit: int) -> bool:
            did.append(limit)
            return True

    times = list(memory.times_ms(Obedient(), lambda: did.append("allocates"), 1, 99, rounds=2))
    assert did == ["allocates", *[1, 99, "allocates"] * 2]
    assert len(times) == 2
    assert all(each >= 0 for pair in times for each in pair)


def test_the_table_names_every_way_and_the_order() -> None:
    lines = "\n".join(report.table(figures({UNTHROTTLED: 0.4, DUTY: 0.2, GATE: 0.1})))
    assert all(word in lines for word in (UNTHROTTLED, DUTY, GATE, "yes"))
