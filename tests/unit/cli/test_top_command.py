"""`flexo top`: what fits on which screen, what is printed once, and a real terminal left as it was."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

import pytest
from admin_server import SayingWho, serving
from busy_flexod import BusyFlexod, job
from says import says

from flexo_cli import app
from flexo_cli.connection import Address, Daemon
from flexo_cli.live.layout import Cursor, List, Size, screen
from flexo_cli.live.picture import Picture, take
from flexo_cli.live.terminal import keys_in
from flexo_cli.live.watching import moved
from flexo_protos.v1 import admin_pb2 as pb

NOW = 1_700_000_000.0
WITHIN_S = 60.0
RUN = """
import sys
sys.path.insert(0, {here!r})
from admin_server import SayingWho
from flexo_cli import app, connection
connection.new_authenticator = SayingWho
sys.exit(app.run(["top", *sys.argv[1:]]))
"""


@pytest.fixture
def flexod(monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyFlexod]:
    service = BusyFlexod()
    with serving(service, monkeypatch) as address:
        service.address = address
        yield service


def picture_of(flexod: BusyFlexod) -> Picture:
    flexod.status.last_cycle_at = NOW - 1
    return take(Daemon(Address(flexod.address, "the test"), SayingWho()), NOW)


def shown(flexod: BusyFlexod, width: int, height: int, place: Cursor | None = None, away: str = "") -> str:
    lines = screen(picture_of(flexod), Size(width, height), place or Cursor(), away, NOW).lines
    assert len(lines) == height
    assert all(line.cell_len <= width for line in lines)
    return "\n".join(line.plain.rstrip() for line in lines)


def test_a_small_screen_has_the_cluster_the_jobs_the_nodes_and_what_is_next(flexod):
    text = shown(flexod, 80, 24)
    assert "lab, Slurm 22.05.8, policy lyra" in text
    assert says(text, "64 on 16 nodes", "3 idle", "5 in satellites")
    assert says(text, "3 run", "9 workers", "9 granted", "24 at most")
    assert "leader" not in text
    assert "looks again in 4 s" in text
    assert re.search(r"^100 +ada +3/2-8 +42% +~2 h +training +all idle GPUs", text, re.MULTILINE)
    assert re.search(r"n1 +\.\.\.\.", text)
    assert "servers on loan" not in text


def test_what_moves_comes_first_and_shows_where_to(flexod):
    flexod.jobs.append(
        job(7, workers=2, granted=6, grants=[pb.GrantView(node="n9", workers=4, state="warming")])
    )
    lines = shown(flexod, 120, 30).splitlines()
    first = next(line for line in lines if line.startswith("  7 "))
    assert lines[lines.index(first) - 1].startswith("JOB")
    assert "2>6/2-8" in first
    assert "1 resizing" in "\n".join(lines)


def test_jobs_have_names_and_those_that_wait_are_listed_in_their_order(flexod):
    flexod.jobs = [job(7, name="resnet-sweep-of-ada", user="ada-lovelace", max=16, wanted=6)]
    flexod.jobs[0].attached = False
    flexod.waiting = [
        pb.WaitingJob(job_id=19, name="late", user="bob", min=1, max=4, reason="JobHeldUser"),
        pb.WaitingJob(
            job_id=18, name="bert", user="eve", min=2, max=8, waits_for="for resources", place=2,
            submitted_at=NOW - 600, starts_at=NOW + 7200,
        ),
        pb.WaitingJob(job_id=17, name="gpt", user="eve", min=4, max=8, waits_for="for its turn", place=1),
    ]  # fmt: skip
    text = shown(flexod, 80, 24)
    assert says(text, "1 runs", "3 pending", "1 without leader", "6 at most")
    assert re.search(r"^ *7 +resnet-sw… +ada-lovel… +3/2-16 cap 6 +42% .*no leader +all", text, re.MULTILINE)
    assert re.search(r"^ *18 +bert +eve +2-8 +2 +10 min +in 2 h +for resources$", text, re.MULTILINE)
    assert re.search(r"^ *19 +late +bob +1-4 +\(JobHeldUser\)$", text, re.MULTILINE)
    assert text.index("17  gpt") < text.index("18  bert") < text.index("19  late")


def test_a_long_name_is_cut_also_on_a_wide_screen_so_that_the_reason_is_seen(flexod):
    """A name of 900 letters pushed all other columns off a wide screen."""
    flexod.jobs = [job(7, name="x" * 255, user="y" * 255, reasons=["no idle GPU"])]
    flexod.waiting = [pb.WaitingJob(job_id=8, name="z" * 255, user="eve", min=1, max=2, waits_for="held")]
    text = shown(flexod, 200, 24)
    assert "no idle GPU" in text
    assert "held" in text
    assert not re.search("x{32}|y{32}|z{32}", text)
    assert text.count("…") >= 3


def test_servers_on_loan_are_listed_the_first_due_first_and_marked_among_the_nodes(flexod):
    flexod.lend(
        pb.LoanView(node="n3", since_at=NOW - 600, why="spare", state="lent", satellite_workers=4),
        pb.LoanView(
            node="n5", since_at=NOW - 9600, state="called back", deadline_at=NOW + 100, why_back="peak"
        ),
    )
    text = shown(flexod, 100, 30)
    assert text.index("n5 ") < text.index("n3 ")
    assert re.search(r"n5 +2.7 h +called back +in 100 s +peak", text)
    assert re.search(r"n3 +\S{4} L", text)
    assert re.search(r"n5 +\S{4} <", text)


def test_pool_aggregators_are_listed_the_busiest_first_with_their_jobs_and_what_these_lose(flexod):
    flexod.pool(
        pb.PoolAggregatorView(name="10.0.0.1:7000", use=0.2, flexo_version="1"),
        pb.PoolAggregatorView(
            name="10.0.0.2:7000", use=0.4, cores_used=0.37, gradient_bytes=24 << 20, job_ids=[100, 101],
            slurm_job_id=55, node="c1",
        ),
    )  # fmt: skip
    shared = pb.JobAggregator(name="10.0.0.2:7000", share=1)
    flexod.jobs[0].aggregation.CopyFrom(pb.JobAggregation(aggregators=[shared], loss=0.034))
    flexod.jobs[1].aggregation.CopyFrom(pb.JobAggregation(aggregators=[shared]))
    flexod.jobs.append(job(7, aggregation=pb.JobAggregation()))
    flexod.jobs.append(job(8, aggregation=pb.JobAggregation(satellites=2)))
    text = shown(flexod, 150, 40)
    assert says(text, "2 Aggregators attached", "1 wanted by 2 jobs")
    assert re.search(r"10.0.0.2:7000 +c1 +55 +37% +40% +24.0 MiB +100 -3%, 101\n10.0.0.1:7000 ", text)
    assert re.search(r"10.0.0.1:7000 +0% +20% +0.0 MiB +idle", text)
    for number, whose in ((100, "pool -3%"), (101, "pool"), (102, "none"), (7, "own"), (8, "satellites")):
        assert re.search(rf"^ *{number} +ada .* training +{whose} +all idle", text, re.MULTILINE)


def test_the_nodes_of_aggregators_in_satellites_are_named_and_not_too_many_of_them(flexod):
    def on(*places: tuple[str, str]) -> pb.JobAggregation:
        grants = [pb.GrantView(node=node, state=state) for node, state in places]
        return pb.JobAggregation(satellites=sum(each.state == "training" for each in grants), grants=grants)

    both = on(("c2", "leaving"), ("c1", "training"), ("c1", "training"))
    flexod.jobs.append(job(7, aggregation=both))
    flexod.jobs.append(job(8, aggregation=on(("c1", "pending"))))
    flexod.jobs.append(job(9, aggregation=on(*((f"c{number}", "training") for number in range(5)))))
    text = shown(flexod, 150, 40)
    for number, where in (
        (7, "satellites c1 c2 (leaving)"),
        (8, "own, c1 (pending)"),
        (9, "satellites c0 c1 c2 +2"),
    ):
        assert re.search(rf"^ *{number} +ada .* training +{re.escape(where)} +all idle", text, re.MULTILINE)


def test_without_a_pool_nothing_is_said_of_aggregators(flexod):
    text = shown(flexod, 150, 40)
    assert "ggregator" not in text.replace("AGGREGATOR", "Aggregator")
    assert "pool" not in text


def test_nodes_and_jobs_of_aggregators_are_no_columns_if_no_queue_confirms_them(flexod):
    flexod.pool(pb.PoolAggregatorView(name="10.0.0.1:7000"))
    text = shown(flexod, 150, 40)
    assert "GRADIENTS" in text
    assert "SLURM JOB" not in text
    assert "NODE " not in text


@pytest.mark.thorough
def test_hundreds_of_jobs_fill_the_screen_and_can_be_gone_through(flexod):
    flexod.jobs = [job(1000 + number) for number in range(300)]
    picture = picture_of(flexod)
    place, seen = Cursor(), set[str]()
    for _ in range(40):
        made = screen(picture, Size(200, 50), place, "", NOW)
        seen |= set(re.findall(r"^(1\d\d\d) ", "\n".join(line.plain for line in made.lines), re.MULTILINE))
        place = moved(place, "page down", made)
    assert len(seen) == made.of == 300
    assert place.first + made.rows == 300
    assert moved(place, "top", made).first == 0
    assert moved(Cursor(), "up", made).first == 0


@pytest.mark.parametrize("looked_at", List)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (10, 3), (40, 8), (80, 12), (300, 100)])
def test_a_screen_of_any_size_is_filled_and_not_overflown(flexod, width, height, looked_at):
    flexod.lend(*(pb.LoanView(node=f"n{number}", state="lent", since_at=NOW) for number in range(30)))
    flexod.jobs = [job(number) for number in range(1, 40)]
    shown(flexod, width, height, Cursor(looked_at))


def test_a_cluster_without_anything_is_shown(flexod):
    flexod.jobs, flexod.nodes = [], []
    flexod.status.Clear()
    picture = take(Daemon(Address(flexod.address, "the test"), SayingWho()), NOW)
    text = "\n".join(line.plain for line in screen(picture, Size(80, 24), Cursor(), "", NOW).lines)
    assert says(text, "not seen the cluster")
    assert "jobs none" in text
    assert "0 run" in text


def test_a_list_that_has_become_shorter_or_is_gone_is_shown_all_the_same(flexod):
    text = shown(flexod, 80, 24, Cursor(List.JOBS, first=200))
    assert "jobs 1-3 of 3" in text
    assert "arrows: jobs" in shown(flexod, 80, 24, Cursor(List.LOANS, first=7))


def test_a_flexod_that_is_away_is_named_above_what_was_seen_last(flexod):
    picture = picture_of(flexod)
    lines = screen(picture, Size(100, 24), Cursor(), "flexod does not answer at x:1\x1b[2J", NOW + 45).lines
    assert says(lines[0].plain, "45 s", "x:1\\x1b[2J")
    assert "lab, Slurm" in lines[1].plain


def test_names_that_users_chose_do_not_steer_the_terminal(flexod):
    flexod.waiting = [pb.WaitingJob(job_id=2, name="\x1b[2J", user="\x1b", waits_for="\x07")]
    flexod.jobs = [
        job(1, name="\x07", user="\x1b]0;owned\x07", reasons=["\x1b[2J"], pending_command="a\x1bb")
    ]
    flexod.status.trouble = "\x1b[31m"
    assert not set(shown(flexod, 200, 50)) & {"\x1b", "\x07"}


def test_tab_goes_from_list_to_list_and_leaves_out_what_there_is_not():
    made = screen_rows(pb.ListLoansReply(lending=True), pb.GetStatusReply(pool=pb.PoolView()))
    place = Cursor()
    lists = [(place := moved(place, "next", made)).looked_at for _ in range(4)]
    assert lists == [List.POOL, List.LOANS, List.NODES, List.JOBS]
    assert moved(Cursor(), "next", screen_rows()).looked_at is List.NODES
    waits = screen_rows(jobs=pb.ListJobsReply(waiting=[pb.WaitingJob(job_id=7)]))
    assert moved(Cursor(), "next", waits).looked_at is List.PENDING


def screen_rows(loans=None, status=None, jobs=None):
    said = (
        status or pb.GetStatusReply(),
        jobs or pb.ListJobsReply(),
        pb.ListNodesReply(),
        loans or pb.ListLoansReply(),
    )
    return screen(Picture(NOW, *said), Size(80, 24), Cursor(), "", NOW)


def test_keys_are_told_apart_also_when_they_come_at_once():
    assert keys_in("\x1b[B\x1b[5~\tjq") == ["down", "page up", "next", "down", "quit"]
    assert keys_in("xyz\x1b[99~\x00") == []


def test_once_prints_everything_uncut_and_without_colours_when_piped(flexod, capsys):
    flexod.jobs = [job(number, reasons=["x" * 300]) for number in range(1, 60)]
    assert app.run(["top"]) == app.run(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert out.count("x" * 300) == 2 * 59
    assert len(re.findall(r"^n\d+ +[#=.x]{4}$", out, re.MULTILINE)) == 2 * 16
    assert "\x1b" not in out


def test_json_has_what_is_shown(flexod, capsys):
    flexod.order = [4711]
    flexod.waiting = [pb.WaitingJob(job_id=4711, waits_for="for its turn")]
    assert app.run(["top", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"at", "status", "jobs", "waiting", "nodes", "order", "loans"}
    assert told["order"] == [4711]
    assert told["waiting"][0]["waits_for"] == "for its turn"
    assert told["jobs"][0]["reasons"] == list(flexod.jobs[0].reasons) != []
    assert told["nodes"][2] == {
        "name": "n3", "gpus": 4, "gpus_allocated": 2, "gpu_type": None, "unusable": None,
        "partitions": ["train"],
    }  # fmt: skip


def test_a_flexod_that_is_away_is_exit_3_where_everything_is_printed_once(flexod, capsys):
    flexod.present = False
    assert app.run(["top", "--once"]) == 3
    assert capsys.readouterr().out == ""


@dataclass
class Terminal:
    """A terminal of 80 by 24 characters with `flexo top` on it."""

    process: subprocess.Popen[bytes]
    side: int
    written: str = ""

    def until(self, wanted: Callable[[str], object]) -> str:
        deadline = time.monotonic() + WITHIN_S
        while not wanted(self.written):
            assert time.monotonic() < deadline, self.written[-2000:]
            if select.select([self.side], [], [], 0.1)[0]:
                self.written += os.read(self.side, 1 << 16).decode()
        return self.written

    def press(self, keys: str) -> None:
        os.write(self.side, keys.encode())

    def end(self) -> int:
        deadline = time.monotonic() + WITHIN_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self.side], [], [], 0.1)[0]:
                self.written += os.read(self.side, 1 << 16).decode()
        return self.process.returncode


@contextmanager
def terminal(*arguments: str, **variables: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    script = RUN.format(here=str(Path(__file__).parent))
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", **variables},
        start_new_session=True,
    )
    try:
        yield Terminal(process, ours)
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def left(written: str) -> bool:
    """The whole screen was taken, and given back with its cursor."""
    taken, back = written.rfind("\x1b[?1049h"), written.rfind("\x1b[?1049l")
    return 0 <= taken < back and "\x1b[?25h" in written[-100:]


@pytest.mark.processes
def test_a_terminal_shows_a_flexod_that_goes_and_comes_and_q_leaves_it_as_it_was(flexod):
    with terminal("--interval", "0.5") as seen:
        seen.until(lambda text: "policy lyra" in text)
        flexod.present = False
        seen.until(lambda text: "trying again" in text)
        flexod.present, flexod.status.policy = True, "goodput"
        seen.until(
            lambda text: "policy goodput" in text and "trying again" not in text.rpartition("\x1b[H")[2]
        )
        seen.press("\t")
        seen.until(lambda text: "arrows: nodes" in text)
        seen.press("q")
        assert seen.end() == 0
    assert left(seen.written)


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_too_leave_the_terminal_as_it_was(flexod, number, code):
    with terminal() as seen:
        seen.until(lambda text: "policy lyra" in text)
        seen.process.send_signal(number)
        assert seen.end() == code
    assert left(seen.written)


@pytest.mark.thorough
def test_ctrl_z_gives_the_terminal_back_until_it_is_wanted_again(flexod):
    with terminal() as seen:
        seen.until(lambda text: "policy lyra" in text)
        seen.process.send_signal(signal.SIGTSTP)
        os.waitpid(seen.process.pid, os.WUNTRACED)
        stopped = len(seen.until(left))
        assert termios.tcgetattr(seen.side)[3] & termios.ICANON
        flexod.status.policy = "goodput"
        seen.process.send_signal(signal.SIGCONT)
        seen.until(lambda text: "policy goodput" in text[stopped:])
        assert not termios.tcgetattr(seen.side)[3] & termios.ICANON
        seen.press("q")
        assert seen.end() == 0


@pytest.mark.processes
def test_a_flexod_that_never_answered_is_named_on_the_screen_too(flexod):
    with terminal(FLEXO_DAEMON="127.0.0.1:1") as seen:
        seen.until(lambda text: "127.0.0.1:1" in text)
        seen.press("q")
        assert seen.end() == 0


@pytest.mark.processes
def test_no_color_is_heeded(flexod):
    flexod.status.trouble = "something"
    with terminal(NO_COLOR="1") as seen:
        text = seen.until(lambda text: "something" in text)
        seen.press("q")
        seen.end()
    assert not re.search(r"\x1b\[[0-9;]*\b(3[0-7]|4[0-7]|9[0-7])m", text)


@pytest.mark.processes
def test_a_terminal_that_can_do_nothing_gets_everything_once(flexod):
    with terminal(TERM="dumb") as seen:
        assert seen.end() == 0
        seen.until(lambda text: "nodes:" in text)
    assert "\x1b" not in seen.written
