"""`flexo forecast`: where its history comes from, what it prints and draws, and what it says of bad files."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from admin_server import SayingWho, serving
from command_line import Run
from says import says

from flexo_cli import connection
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc


@pytest.fixture
def forecast(flexo_run: Run) -> Run:
    return partial(flexo_run, "forecast")


@pytest.fixture
def csv(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "demand.csv"
        path.write_text(text)
        return path

    return write


def test_a_made_up_load_is_forecast_for_a_day(forecast: Run) -> None:
    code, out, _ = forecast("--generate", "--days", 10)
    assert code == 0
    assert says(out, "seed 0", "10.0 days", "seasonal", "5% to 95%")
    assert "█" in out
    assert len([line for line in out.splitlines() if line.startswith("2026-")]) == 24


def test_as_json_it_has_the_whole_band(forecast: Run) -> None:
    code, out, _ = forecast("--generate", "--days", 3, "--ahead", 0.5, "--quantile", 0.9, "--json")
    assert code == 0
    said = json.loads(out)
    assert said.keys() == {"history", "method", "quantile", "note", "forecast"}
    assert said["quantile"] == 0.9
    assert 144 <= len(said["forecast"]) <= 145
    for row in said["forecast"]:
        assert 0 <= row["lower"] <= row["expected"] <= row["upper"]


def test_a_terminal_without_such_letters_gets_plain_bars(
    forecast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(sys.stdout), "encoding", "ascii", raising=False)
    code, out, _ = forecast("--generate", "--days", 3)
    assert code == 0
    assert out.isascii()


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_it_draws_a_picture(forecast: Run, tmp_path: Path, suffix: str, begins: bytes) -> None:
    path = tmp_path / f"forecast.{suffix}"
    code, out, _ = forecast("--generate", "--days", 5, "-o", path)
    assert code == 0
    assert str(path) in out
    assert path.read_bytes().startswith(begins)


def test_a_file_is_read_with_times_of_both_kinds(forecast: Run, csv: Callable[[str], Path]) -> None:
    path = csv("time,servers\n# a comment\n\n1700000000,3\n2023-11-14T22:18:20+00:00, 4.5\n")
    code, out, _ = forecast("--history", path, "--json")
    assert code == 0
    said = json.loads(out)
    assert (said["history"]["first_at"], said["history"]["last_at"]) == (1700000000, 1700000300)
    assert said["method"] == "last value"
    assert "too few" in said["note"]
    assert said["forecast"][0]["expected"] == 4.5


BAD = """time,servers
1700000000,3
1700000300,-1
1700000600
yesterday,2
1700000900,many
1700000000,4
1700001200,nan
1700000000000,1
2023-13-01T00:00:00,1
"""


def test_every_bad_line_is_named_with_what_is_allowed(forecast: Run, csv: Callable[[str], Path]) -> None:
    path = csv(BAD)
    code, out, err = forecast("--history", path)
    assert code == 1
    assert not out
    said = err.splitlines()
    for line, words in (
        (3, "'-1' is no number of servers: it takes a number from 0"),
        (4, "1 columns: it takes two"),
        (5, "'yesterday' is no time"),
        (6, "'many' is no number"),
        (7, "stands in line 2 already"),
        (8, "'nan' is no number"),
        (9, "not milliseconds"),
        (10, "is no time"),
    ):
        assert any(f"{path}:{line}: " in each and words in each for each in said), (line, said)


def test_of_many_bad_lines_the_first_ten_are_shown(forecast: Run, csv: Callable[[str], Path]) -> None:
    _, _, err = forecast("--history", csv("x,1\n" * 25))
    assert len(err.splitlines()) == 11
    assert "15 more lines" in err


@pytest.mark.parametrize("text", ["", "time,servers\n", "# nothing\n\n"])
def test_a_file_without_samples_is_refused(forecast: Run, csv: Callable[[str], Path], text: str) -> None:
    code, _, err = forecast("--history", csv(text))
    assert code == 1
    assert says(err, "no line", "time", "servers")


def test_files_that_are_none_are_refused(forecast: Run, tmp_path: Path) -> None:
    code, _, err = forecast("--history", tmp_path / "nowhere.csv")
    assert code == 1
    assert "nowhere.csv: No such file" in err
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x01" * 100)
    code, _, err = forecast("--history", binary)
    assert code == 1
    assert "binary" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--generate", "--history", "x.csv"), "not both"),
        (("--generate", "--method", "magic"), "none of seasonal, lstm"),
        (("--generate", "-o", "x.txt"), ".png, .svg, .pdf"),
        (("--generate", "--quantile", "1.5"), "0.999"),
    ],
)
def test_options_that_cannot_be_are_refused(forecast: Run, arguments: tuple[str, ...], words: str) -> None:
    code, _, err = forecast(*arguments)
    assert code == 2
    assert words in "".join(err.split("│")).replace("\n", "")


def test_a_picture_that_cannot_be_written_is_said(forecast: Run, tmp_path: Path) -> None:
    code, _, err = forecast("--generate", "--days", 3, "-o", tmp_path / "no" / "folder.png")
    assert code == 1
    assert "folder.png: No such file" in err


def test_without_pytorch_the_lstm_says_what_to_install(
    forecast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = forecast("--generate", "--days", 3, "--method", "lstm")
    assert code == 1
    assert "[torch]" in err


@pytest.mark.thorough
def test_a_back_test_shows_both_methods_beside_each_other(
    forecast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("flexo.loaning.lstm.STEPS", 10)
    arguments = ("--generate", "--days", 3, "--backtest", "--test-days", 0.3)
    code, out, _ = forecast(*arguments)
    assert code == 0
    assert "through the last 0.3 days" in out
    for words in ("10 min  seasonal", "10 min  LSTM", "1 h  last value", "MISSED"):
        assert words in out
    code, out, _ = forecast(*arguments, "--json")
    scores = json.loads(out)["backtest"]
    assert {score["method"] for score in scores} == {"last value", "seasonal", "LSTM"}
    assert all(0 <= score["within"] <= 1 and score["mae"] >= 0 for score in scores)


def test_a_back_test_of_too_little_is_refused(forecast: Run) -> None:
    code, _, err = forecast("--generate", "--days", 2, "--backtest", "--test-days", 2)
    assert code == 1
    assert "half a day before" in err


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """Answers as flexod would of its event store."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self.asked: list[admin_pb2.ListDemandRequest] = []

    def ListDemand(self, request, context):  # noqa: N802
        self.asked.append(request)
        found = [admin_pb2.DemandSample(at=at, servers=n, source="partition infer") for at, n in self.samples]
        return admin_pb2.ListDemandReply(samples=found)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    service = Admin()
    with serving(service, monkeypatch):
        yield service


def test_without_a_file_flexods_event_store_is_the_history(admin: Admin, forecast: Run) -> None:
    now = time.time()
    admin.samples = [(now - 7200 + minutes * 60, 4.0) for minutes in range(60)]
    code, out, _ = forecast()
    assert code == 0
    assert re.search(r"flexod's event store \(partition infer\), 1.[01] hours to", out)
    assert "old" in out
    assert admin.asked[0].step_s == 300
    assert now - admin.asked[0].since_at == pytest.approx(35 * 86_400, abs=60)


def test_a_event_store_without_demand_says_what_to_do(admin: Admin, forecast: Run) -> None:
    code, _, err = forecast()
    assert code == 1
    assert "[loaning]" in err
    assert "--history" in err


def test_without_flexod_it_says_so(forecast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "new_authenticator", SayingWho)
    code, _, err = forecast("--daemon", "127.0.0.1:1")
    assert code == 3
    assert "does not answer" in err
