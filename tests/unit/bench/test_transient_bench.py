"""Figure 8's sweep on made-up batches: rates while nothing is resized, options, table and picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexo_bench.runtime import transient_report
from flexo_bench.runtime.__main__ import _parse
from flexo_bench.runtime.results import Interval, Transient
from flexo_bench.runtime.transient import BASE, SETTLED, Asked, Cycle, Stretch, fixed_rates, undisturbed
from flexo_bench.runtime.worklog import Batch

pytestmark = pytest.mark.thorough


def train(size: int, began: float, ended: float, step_s: float) -> list[Batch]:
    """Mini-batches of all workers of a job of this size."""
    steps = range(int((ended - began) / step_s))
    return [
        Batch(rank, step, began + (step + 1) * step_s, rank, size, 64)
        for step in steps
        for rank in range(size)
    ]


def test_ideal_and_baseline_are_as_fast_as_the_job_is_at_the_same_time() -> None:
    cycle = Cycle(20, began=100, come=Asked(110, 5), go=Asked(130, BASE), ended=140)
    slow_later = [*train(BASE, 0, 8, 0.25), *train(BASE, 100, 112, 0.5), *train(5, 112, 131, 0.5)]
    stretches = list(undisturbed(cycle, slow_later))
    assert stretches[0] == Stretch(BASE, 100, 110)
    assert stretches[1].start == pytest.approx(112 + (SETTLED + 1) * 0.5)
    assert (stretches[1].workers, stretches[1].end) == (5, 130)
    rates = fixed_rates([Stretch(BASE, 0, 8), *stretches], slow_later)
    assert rates[5] == pytest.approx(5 * 64 / 0.5)
    assert rates[BASE] == pytest.approx((8 * BASE * 64 / 0.25 + 10 * BASE * 64 / 0.5) / 18)


def test_gpus_that_go_before_anybody_uses_them_add_no_rate() -> None:
    cycle = Cycle(5, began=0, come=Asked(10, 8), go=Asked(15, BASE), ended=30)
    batches = [*train(BASE, 0, 14.5, 0.25), *train(8, 14.5, 15, 0.25)]
    assert [each.workers for each in undisturbed(cycle, batches)] == [BASE]


def run(rival: str, gpus: int, interval_s: float, samples: int) -> Transient:
    intervals = (
        Interval(0, 5, 4),
        Interval(5, 5 + interval_s, 4 + gpus),
        Interval(5 + interval_s, 10 + interval_s, 4),
    )
    return Transient(
        rival, gpus, interval_s, 0.25, intervals, samples, {4: 1024.0, 4 + gpus: 256.0 * (4 + gpus)}
    )


def test_the_table_has_a_line_for_each_combination_with_ratios_beside_the_rival(tmp_path: Path) -> None:
    runs = [
        run(rival, gpus, interval_s, samples)
        for gpus in (1, 4)
        for interval_s in (20.0, 60.0)
        for rival, samples in (("restart", 20_000), ("core_torch", 31_000), ("core_torch", 32_000))
    ]
    lines = list(transient_report.table(runs))
    assert len([line for line in lines if "n=2" in line]) == 4
    assert len([line for line in lines if "n=1" in line]) == 4
    of_ours = next(each for each in lines if each.startswith("1    20 ") and "n=2" in each)
    over = [runs[1].over_baseline, runs[2].over_baseline]
    assert f"{sum(over) / 2:.3f} ({over[0]:.3f} to {over[1]:.3f})" in of_ours
    transient_report.draw(runs, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert list(transient_report.table([])) == []


def test_options_say_what_is_swept() -> None:
    options = _parse(["--intervals", "20,60", "--gpus", "1,4", "--repeats", "2"])
    assert (options.sweep.intervals_s, options.sweep.gpus, options.sweep.repeats) == ((20, 60), (1, 4), 2)
    assert options.sweep.away_s == 60
    assert _parse(["--quick"]).sweep.intervals_s == (20,)


@pytest.mark.parametrize(
    "wrong", ["--intervals=0", "--gpus=1,-1", "--gpus=one", "--gpus=1.5", "--repeats=0", "--away=-3"]
)
def test_what_cannot_be_swept_is_refused(wrong: str) -> None:
    with pytest.raises(SystemExit):
        _parse([wrong])
