"""Log files of workers, read while they grow."""

from __future__ import annotations

import json
from pathlib import Path

from flexo_bench.workers_logs import WorkersLogs


def line(event: str, time: float) -> str:
    return json.dumps({"event": event, "time": time}) + "\n"


def add(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


def test_each_look_has_all_events_of_all_files_in_order_of_time(tmp_path: Path) -> None:
    logs = WorkersLogs(tmp_path)
    assert logs.events() == []
    add(tmp_path / "7.jsonl", line("step", 1) + line("step", 4))
    add(tmp_path / "8.jsonl", line("enter", 2))
    assert [(each["log"], each["time"]) for each in logs.events()] == [("7", 1), ("8", 2), ("7", 4)]
    add(tmp_path / "8.jsonl", line("step", 3))
    assert [each["time"] for each in logs.events()] == [1, 2, 3, 4]
    assert [each["time"] for each in logs.events("step")] == [1, 3, 4]


def test_a_line_that_is_being_written_counts_once_it_is_whole(tmp_path: Path) -> None:
    logs, text = WorkersLogs(tmp_path), line("stépp", 1)
    for at in range(len(text) - 1):
        add(tmp_path / "7.jsonl", text[at])
        assert logs.events() == []
    add(tmp_path / "7.jsonl", text[-1])
    assert len(logs.events("stépp")) == len(logs.events("stépp")) == 1


def test_files_of_another_suffix_are_left_alone(tmp_path: Path) -> None:
    add(tmp_path / "7.facts", line("facts", 1))
    assert WorkersLogs(tmp_path).events() == []
    assert len(WorkersLogs(tmp_path, "facts").events()) == 1
