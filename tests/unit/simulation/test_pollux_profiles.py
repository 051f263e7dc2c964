"""Pollux' profiles: step times on and off the table, gradients, epochs, and files that make no sense."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy.interpolate import LinearNDInterpolator
from small_application import write_application
from threadpoolctl import threadpool_limits
from traces import needs_traces

from flexo.model.ranges import Range
from flexo.scalability.gradient_noise import GradientStatistics
from flexo.scalability.local_batch import BatchLimits
from flexo_simulation.pollux_profiles import DECLARED, Application, BadProfile, Declared, load_application


@pytest.fixture
def small(tmp_path: Path) -> Application:
    return Application("small", Declared(max_epochs=2), write_application(tmp_path))


def test_batches_and_samples_a_gpu_are_those_that_were_measured(small: Application):
    assert small.limits == BatchLimits(initial=8, largest=32, local=Range(4, 16))


def test_what_its_authors_know_of_memory_goes_before_what_was_measured(tmp_path: Path):
    less = Application("small", Declared(2, most_local_samples=8), write_application(tmp_path))
    assert less.limits.local == Range(4, 8)


def test_between_measured_samples_step_times_are_linear(small: Application):
    assert small.step_times.of((1,), 4).step_s == 1.0
    time = small.step_times.of((1,), 7)
    assert (time.step_s, time.sync_s) == pytest.approx((1.75, 0.0))
    assert time.compute_s == pytest.approx(1.75)


def test_only_the_round_of_nodes_counts_not_where_it_begins(small: Application):
    assert small.step_times.of((2, 1), 4) == small.step_times.of((1, 2), 4)


def test_samples_beyond_those_measured_on_a_placement_are_refused(small: Application):
    with pytest.raises(ValueError, match="never measured"):
        small.step_times.of((1,), 17)


def test_a_placement_that_was_not_measured_lies_between_those_that_were(small: Application):
    # 2 nodes with 4 GPUs, between 4 and 16 samples of scalability.csv
    time = small.step_times.of((3, 1), 10)
    assert (time.step_s, time.sync_s) == pytest.approx((5.5, 3.0))


def test_far_from_all_measurements_nothing_is_made_up(small: Application):
    with pytest.raises(ValueError, match="never measured"):
        small.step_times.of((4, 4, 4, 4), 4)


def test_gradients_between_validated_batches_are_linear(small: Application):
    assert small.epochs.gradients(8, 0) == GradientStatistics(1.0, 10.0)
    assert small.epochs.gradients(20, 1) == GradientStatistics(4.0, 30.0)
    with pytest.raises(ValueError, match="never validated"):
        small.epochs.gradients(33, 0)
    with pytest.raises(ValueError, match="never validated"):
        small.epochs.gradients(7, 0)


def test_an_epoch_ends_with_the_smallest_progress_of_all_batches(small: Application):
    assert small.epochs.ends == (100.0, 199.0)


def test_an_application_that_nobody_has_measured_is_refused(tmp_path: Path):
    with pytest.raises(BadProfile, match="'alexnet' is none of"):
        load_application(tmp_path, "alexnet")
    with pytest.raises(BadProfile, match="bert"):
        load_application(tmp_path, "bert")


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("placements.csv", "placement,local_bsz,step_time\n1,4,1\n", "no sync_time"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n", "no rows"),
        ("placements.csv", "", "no local_bsz and no placement and no step_time"),
        ("validation-8.csv", "progress,grad_sqr,grad_var\n1,1,1\n", "1 epochs of 100"),
        ("validation-big.csv", "progress,grad_sqr,grad_var\n1,1,1\n", "does not name a batch size"),
    ],
)
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, file: str, text: str, says: str):
    write_application(tmp_path / "cifar10")
    (tmp_path / "cifar10" / file).write_text(text)
    with pytest.raises(BadProfile, match=says):
        load_application(tmp_path, "cifar10")


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_off_the_table_it_is_scipys_interpolation(name: str):
    folder = needs_traces("pollux/profiles") / name
    application = load_application(folder.parent, name)
    means = defaultdict(list)
    for row in csv.DictReader((folder / "placements.csv").open()):
        where = len(row["placement"]), sum(map(int, row["placement"])), int(row["local_bsz"])
        means[where].append((float(row["step_time"]), float(row["sync_time"])))
    points = [(*where, *np.mean(times, axis=0)) for where, times in sorted(means.items())]
    for row in csv.DictReader((folder / "scalability.csv").open()):
        points.append(tuple(map(float, row.values())))
    table = np.array(points)
    theirs = LinearNDInterpolator(table[:, :3], table[:, 3:])
    measured = {
        tuple(map(int, row["placement"])) for row in csv.DictReader((folder / "placements.csv").open())
    }
    compared = 0
    for placement in ((1, 1, 3), (2, 3, 3), (4, 4, 4, 4, 4), (3, 3, 3, 3, 3), (1, 2, 2, 4), (4,) * 20):
        if placement in measured:
            continue
        low, high = application.limits.local.min, application.limits.local.max
        for local in {low, low + 1, (low + high) // 2, high}:
            with threadpool_limits(1):  # many small sums, for which threads only wait for each other
                step_s, sync_s = theirs([min(16, len(placement)), sum(placement), local])[0]
            if np.isnan(step_s):
                with pytest.raises(ValueError, match="never measured"):
                    application.step_times.of(placement, local)
                continue
            ours = application.step_times.of(placement, local)
            assert (ours.step_s, ours.sync_s) == pytest.approx((step_s, sync_s), rel=1e-9)
            compared += 1
    assert compared
