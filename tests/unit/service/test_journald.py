"""The log in systemd's journal: a socket of the test stands where journald listens."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from flexo.config import LogSettings
from flexo.service import journald, logs
from flexo.service.journald import JournalLogger, fields


class Journal:
    """Reads what journald would."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(30)

    def entry(self) -> dict[str, list[str]]:
        content, files, _, _ = socket.recv_fds(self.socket, 1 << 20, 4)
        for file in files:
            with os.fdopen(file, "rb") as reader:
                reader.seek(0)
                content = reader.read()
        return decoded(content)


def decoded(content: bytes) -> dict[str, list[str]]:
    """As the protocol's description says, written without a look at how it is encoded."""
    found: dict[str, list[str]] = {}
    while content:
        line, _, rest = content.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack("<Q", rest[:8])
            value, content = rest[8 : 8 + length], rest[8 + length :]
            assert content[:1] == b"\n"
            content = content[1:]
        else:
            content = rest
        found.setdefault(name.decode(), []).append(value.decode())
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "socket")
    yield made
    made.socket.close()


@pytest.fixture
def log(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> structlog.BoundLogger:
    monkeypatch.setattr(logs, "JournalLogger", lambda: JournalLogger(tmp_path / "socket"))
    logs.set_up(LogSettings(format="journal"))
    return structlog.get_logger("flexo.test")


def test_an_event_of_a_job_is_found_by_its_kind_its_job_and_its_nodes(journal, log):
    text = "grow by 2 workers on n1, n2: they are idle"
    log.info("grow", job="17.r1", nodes=["n1", "n2"], text=text)
    assert journal.entry() == {
        "MESSAGE": [f"grow job 17.r1: {text}"],
        "PRIORITY": ["6"],
        "SYSLOG_IDENTIFIER": ["flexod"],
        "FLEXO_KIND": ["grow"],
        "FLEXO_JOB": ["17.r1"],
        "FLEXO_JOB_ID": ["17"],
        "FLEXO_NODE": ["n1", "n2"],
    }


def test_whatever_else_is_said_is_in_the_message_and_a_field_of_its_own(journal, log):
    log.warning("steering denied", job="17", uid=1000, peer="ipv4:10.0.0.7:99")
    entry = journal.entry()
    assert entry["MESSAGE"] == ["steering denied job 17 (uid=1000, peer=ipv4:10.0.0.7:99)"]
    assert (entry["PRIORITY"], entry["FLEXO_UID"]) == (["4"], ["1000"])
    assert "FLEXO_KIND" not in entry


def test_a_traceback_is_part_of_the_message(journal, log):
    try:
        raise ZeroDivisionError("a mistake")
    except ZeroDivisionError:
        log.exception("the cycle failed")
    entry = journal.entry()
    assert entry["MESSAGE"][0].startswith("the cycle failed\nTraceback")
    assert "a mistake" in entry["MESSAGE"][0]
    assert entry["PRIORITY"] == ["3"]


def test_what_a_user_chose_begins_no_field(journal, log):
    log.info("job scaled", job="1\nPRIORITY=0\nFLEXO_JOB_ID=2", text="x\nMESSAGE=owned")
    entry = journal.entry()
    assert entry["PRIORITY"] == ["6"]
    assert len(entry["MESSAGE"]) == len(entry["FLEXO_JOB_ID"]) == 1


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True), st.text(), max_size=5))
def test_any_text_comes_back_as_it_was(said):
    said = {f"x{key}": value for key, value in said.items()}  # else a key may mean something
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "socket")
        JournalLogger(Path(folder) / "socket").msg({"event": "grow", **said})
        entry = journal.entry()
        journal.socket.close()
    assert {key: entry[f"FLEXO_{key.upper()}"] for key in said} == {key: [said[key]] for key in said}


def test_what_is_no_valid_text_is_sent_with_marks_in_its_place(journal, log):
    log.info("grow", job="17", text="from \udcff")
    assert journal.entry()["MESSAGE"] == ["grow job 17: from ?"]


def test_a_journal_that_was_started_again_is_found_at_the_same_place(journal, tmp_path, capsys):
    logger = JournalLogger(tmp_path / "socket")
    journal.socket.close()
    logger.msg({"event": "grow", "level": "info", "text": "by 1"})
    (tmp_path / "socket").unlink()
    again = Journal(tmp_path / "socket")
    logger.msg({"event": "grow", "level": "info", "text": "by 2"})
    assert again.entry()["MESSAGE"] == ["grow: by 2"]
    again.socket.close()
    assert capsys.readouterr().err == "grow: by 1\n"


def test_an_entry_that_no_datagram_holds_is_a_sealed_file(journal, log):
    log.info("trouble", text="y" * 3_000_000)
    (message,) = journal.entry()["MESSAGE"]
    assert len(message) == len("trouble: ") + 3_000_000
    assert set(message) == set("trouble: y")


def test_what_is_below_the_level_is_not_sent(journal, log):
    log.debug("extend", text="the grant stands")
    log.info("grow", text="grow by 1 worker on n1")
    assert journal.entry()["FLEXO_KIND"] == ["grow"]


def test_while_nobody_listens_there_entries_are_lines_on_the_error_output(tmp_path, capsys):
    JournalLogger(tmp_path / "nobody").msg({"event": "grow", "level": "info", "job": "17", "text": "by 2"})
    assert capsys.readouterr().err == "grow job 17: by 2\n"


def test_a_journal_that_takes_nothing_costs_entries_which_are_counted_and_not_flexod(
    journal, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(journald, "WAIT_S", 0.01)
    logger = JournalLogger(tmp_path / "socket")
    for number in range(2000):
        logger.msg({"event": "grow", "level": "info", "text": str(number)})
    journal.socket.setblocking(False)
    taken = 0
    with contextlib.suppress(BlockingIOError):
        while journal.entry()["MESSAGE"] == [f"grow: {taken}"]:
            taken += 1
    assert 0 < taken < 2000
    logger.msg({"event": "grow", "level": "info", "text": "again"})
    lost = f"{2000 - taken} entries before this one are lost: the journal took nothing"
    assert [journal.entry()["MESSAGE"] for _ in range(2)] == [[lost], ["grow: again"]]
    assert capsys.readouterr().err == ""


def test_under_systemd_the_journal_is_known_by_the_stream_that_it_reads(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv(journald.STREAM_VARIABLE, raising=False)
    with (tmp_path / "stream").open("w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        there = os.fstat(stream.fileno())
        assert not journald.reads_stderr()
        monkeypatch.setenv(journald.STREAM_VARIABLE, f"{there.st_dev}:{there.st_ino + 1}")
        assert not journald.reads_stderr()
        monkeypatch.setenv(journald.STREAM_VARIABLE, f"{there.st_dev}:{there.st_ino}")
        assert journald.reads_stderr()


@pytest.mark.parametrize(
    ("form", "line"),
    [("json", r'"event": "grow"'), ("text", "grow"), ("auto", "grow")],
)
def test_elsewhere_entries_are_lines_on_the_error_output(form, line, capsys, monkeypatch):
    monkeypatch.delenv(journald.STREAM_VARIABLE, raising=False)
    logs.set_up(LogSettings(format=form))
    structlog.get_logger().info("grow", job="17", nodes=["n1"], text="on n1")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert line in said
    assert ("nodes" in said) == (form == "json")


def test_an_entry_without_anything_has_a_message_all_the_same():
    assert dict(fields({}))["MESSAGE"] == ""
