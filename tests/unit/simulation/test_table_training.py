"""Jobs that scale as a measured model does: duration as the trace has it, other sizes by the table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from traces import needs_traces

from flexo.model.training import NodeShare
from flexo.scalability.table import BadTable, TableSpeed
from flexo_simulation.table_training import load_tables, table_training

FOUR = (NodeShare("a", 4),)


def test_a_job_takes_its_duration_on_its_own_size_and_what_the_table_says_on_others():
    training = table_training(600.0, 4, TableSpeed.of({1: 10.0, 2: 18.0, 4: 30.0}))
    assert training.begin().time_left_s(FOUR, 0) == pytest.approx(600)
    assert training.begin().time_left_s((NodeShare("a", 1),), 0) == pytest.approx(1800)
    assert training.begin().time_left_s((NodeShare("a", 2), NodeShare("b", 1)), 0) == pytest.approx(750)


def test_empty_cells_and_zeros_are_sizes_that_nobody_measured(tmp_path: Path):
    (tmp_path / "small.csv").write_text("global_batch_size,1,2,4,8\n64,5,9,0,\n")
    speed = load_tables(tmp_path).of("small", 64)
    assert speed == TableSpeed.of({1: 5.0, 2: 9.0})


@pytest.mark.parametrize("line", ["64,5,x", "64,5", "big,5,6", "64,5,-1", "64,5,nan", "64,0,0"])
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: str):
    (tmp_path / "small.csv").write_text(f"global_batch_size,1,2\n32,1,2\n{line}\n")
    with pytest.raises(BadTable, match="line 3"):
        load_tables(tmp_path)


def test_a_folder_without_tables_and_a_model_that_is_in_none_are_refused(tmp_path: Path):
    with pytest.raises(BadTable, match="no tables"):
        load_tables(tmp_path)
    (tmp_path / "small.csv").write_text("global_batch_size,1\n64,5\n")
    with pytest.raises(BadTable, match=r"\bsmall\b.*batch of 32\b"):
        load_tables(tmp_path).of("small", 32)


def test_durations_of_the_itp_clusters_are_iterations_over_the_tables_throughput():
    tables = load_tables(needs_traces("elasticflow/a100"))
    with needs_traces("itp/cluster01.csv").open() as file:
        for row in csv.DictReader(file):
            speed = tables.of(row["model_name"], int(row["batch_size"]))
            took_s = int(row["num_iteration"]) / speed.rate(int(row["num_gpu"]), 1)
            assert took_s == pytest.approx(float(row["duration"]), abs=1.5)
