"""The process that a node's agent and workers belong to, with agents that do little more than crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from says import says

from horovod_elastic.agent import supervisor as supervisor_file
from horovod_elastic.agent.supervisor import EXIT_TRY_AGAIN, SOCKET_VARIABLE

pytestmark = pytest.mark.processes

BOUND_S = 240
NEVER_S = 1000.0
"""Agents are slow where the machine is busy: only where a test is about it are they given up."""
SUPERVISOR = """
import sys
from horovod_elastic.agent import supervisor
supervisor.STARTS_AGAIN, supervisor.FIRST_PAUSE_S = 2, 0.05
supervisor.ONCE_MORE_S, supervisor.AWAY_PAUSE_S = 0.3, 0.05
supervisor.AWAY_S, supervisor.STARTS_WITHIN_S, supervisor.STEADY_S = map(float, sys.argv[4:7])
agent, stands_still_s, supervisor.ENDS_WITHIN_S = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
starts = [sys.executable, "-c", agent]
sys.exit(supervisor.Supervisor(starts, pass_signals=True, stands_still_s=stands_still_s).run())
"""
AGENT = f"""
import json, os, socket, sys, time
link = socket.socket(fileno=int(os.environ.pop({SOCKET_VARIABLE!r})))
heard = link.makefile("r")
hello = json.loads(heard.readline())

def tell(what, **more):
    link.sendall(json.dumps(dict(do=what, **more)).encode() + b"\\n")

def start(worker_id, *command):
    tell("start", id=worker_id, command=command, environment=dict(COLOUR="blue"), without=["LC_ALL"],
         deaf=False, note=worker_id)

def wait_for(path):
    while not (os.path.exists(path) and os.path.getsize(path)):
        time.sleep(0.01)
"""


def keep(
    agent: str,
    *,
    starts_within_s: float = NEVER_S,
    stands_still_s: float = NEVER_S,
    ends_within_s: float = NEVER_S,
    away_s: float = NEVER_S,
    steady_s: float = NEVER_S,
) -> subprocess.Popen[str]:
    """A supervisor whose agent runs these lines."""
    patience = map(str, (stands_still_s, ends_within_s, away_s, starts_within_s, steady_s))
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, AGENT + agent, *patience],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(supervisor: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Exit code, lines of output, and what was said besides."""
    output, said = supervisor.communicate(timeout=BOUND_S)
    return supervisor.returncode, output.splitlines(), said


def test_the_path_of_the_release_before_starts_the_supervisor() -> None:
    folder = Path(supervisor_file.__file__).parent
    said = []
    for name in ("keeper.py", "supervisor.py"):
        command = [sys.executable, "-I", "-S", folder / name, "--help"]
        said.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert "usage" in said[0]
    assert said[0] == said[1]


def test_an_agent_that_crashes_finds_its_workers_again(tmp_path: Path) -> None:
    code, output, said = end(
        keep(f"""
if not hello["again"]:
    start("w1", "sh", "-c", "echo $COLOUR; echo > {tmp_path}/runs; exec sleep 60")
    tell("spoke", id="w1")
    wait_for("{tmp_path}/runs")
    os.kill(os.getpid(), 9)
(worker,) = hello["workers"]
me, supervisor = os.getpid(), os.getppid()
children = open(f"/proc/{{supervisor}}/task/{{supervisor}}/children").read().split()
print(worker["id"], worker["note"], worker["spoke"], set(children) > {{str(me)}}, flush=True)
tell("kill", id="w1")
print(heard.readline(), flush=True)
tell("end")
sys.exit(7)
""")
    )
    assert code == 7
    assert output[:2] == ["blue", "w1 w1 True True"]
    assert '"ended": "w1", "code": -9' in output[2]
    assert says(said, "started again")


def test_an_end_that_no_agent_has_passed_on_is_told_to_the_next_one() -> None:
    code, output, _ = end(
        keep("""
if not hello["again"]:
    start("w1", "sh", "-c", "exit 3")
    start("w2", "/no/such/program")
    for _ in range(2):
        heard.readline()
    os._exit(1)
ended = sorted((json.loads(heard.readline()) for _ in range(2)), key=lambda each: each["ended"])
print([(each["ended"], each["code"]) for each in ended], "No such file" in ended[1]["error"])
tell("end")
""")
    )
    assert (code, output) == (0, ["[('w1', 3), ('w2', 127)] True"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("first_word", "patience"), [('tell("alive")', {"stands_still_s": 5.0}), ("", {"starts_within_s": 8.0})]
)
def test_an_agent_that_stands_still_is_started_again(first_word: str, patience: dict[str, float]) -> None:
    code, _, said = end(
        keep(
            f"""
if not hello["again"]:
    {first_word}
    time.sleep(600)
tell("end")
""",
            **patience,
        )
    )
    assert code == 0
    assert "has stood still" in said


@pytest.mark.thorough
def test_an_agent_that_is_slow_to_start_does_not_stand_still() -> None:
    code, _, said = end(keep('time.sleep(3)\ntell("end")\n', stands_still_s=0.1))
    assert code == 0
    assert "has stood still" not in said


def test_an_agent_that_hangs_in_its_end_is_killed() -> None:
    code, _, said = end(keep('tell("end")\ntime.sleep(600)\n', ends_within_s=1.0))
    assert code == 128 + signal.SIGKILL
    assert "it is started again" not in said


def test_after_some_attempts_it_gives_up_and_nothing_is_left(tmp_path: Path) -> None:
    code, _, said = end(
        keep(f"""
if not hello["again"]:
    start("w1", "sh", "-c", "echo $$ > {tmp_path}/pid; sleep 60 & sleep 60")
    wait_for("{tmp_path}/pid")
os.kill(os.getpid(), 11)
""")
    )
    assert code == 128 + signal.SIGSEGV
    assert said.count("it is started again") == 2
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_crashes_far_apart_are_not_added_up(tmp_path: Path) -> None:
    code, _, said = end(
        keep(
            f"""
with open("{tmp_path}/tries", "a") as file:
    file.write("x")
if os.path.getsize("{tmp_path}/tries") < 6:
    os._exit(1)
tell("end")
""",
            steady_s=0.0,
        )
    )
    assert code == 0
    assert said.count("it is started again") == 5


def test_an_agent_that_cannot_work_for_now_is_tried_for_longer_than_one_that_crashes(tmp_path: Path) -> None:
    code, output, _ = end(
        keep(f"""
if not hello["again"]:
    start("w1", "sh", "-c", "exec sleep 600")
    os.kill(os.getpid(), 9)
with open("{tmp_path}/tries", "a") as file:
    file.write("x")
if os.path.getsize("{tmp_path}/tries") < 8:
    sys.exit({EXIT_TRY_AGAIN})
print(hello["workers"][0]["id"])
tell("end")
""")
    )
    assert (code, output) == (0, ["w1"])


def test_an_agent_that_cannot_work_for_too_long_is_given_up_and_nothing_is_left(tmp_path: Path) -> None:
    code, _, said = end(
        keep(
            f"""
if not hello["again"]:
    start("w1", "sh", "-c", "echo $$ > {tmp_path}/pid; exec sleep 600")
    wait_for("{tmp_path}/pid")
sys.exit({EXIT_TRY_AGAIN})
""",
            away_s=0.5,
        )
    )
    assert code == EXIT_TRY_AGAIN
    assert "it is started again" in said
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_sigterm_before_the_agent_listens_does_not_end_it_but_is_told_to_it(tmp_path: Path) -> None:
    """Slurm sends it to the whole step, perhaps while the agent is still importing."""
    supervisor = keep(f"""
print(hello["terminated"], flush=True)
open("{tmp_path}/greeted", "w").close()
while "terminated" not in (said := json.loads(heard.readline())):
    pass
print(said, flush=True)
tell("end")
""")
    deadline = time.monotonic() + BOUND_S
    while not (tmp_path / "greeted").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    for pid in [*map(int, children), supervisor.pid]:
        os.kill(pid, signal.SIGTERM)
    code, output, said = end(supervisor)
    assert (code, output) == (0, ["False", "{'terminated': True}"])
    assert "it is started again" not in said


def test_all_die_with_it_and_signals_reach_the_agent(tmp_path: Path) -> None:
    supervisor = keep(f"""
import signal
signal.signal(signal.SIGTERM, lambda number, frame: open("{tmp_path}/told", "w").close())
with open("{tmp_path}/agent", "w") as file:
    file.write(str(os.getpid()))
start("w1", "sh", "-c", "echo $$ > {tmp_path}/worker; exec sleep 600")
while True:
    time.sleep(0.1)
    tell("alive")
""")
    deadline = time.monotonic() + BOUND_S
    while not ((tmp_path / "worker").exists() and (tmp_path / "worker").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    supervisor.terminate()
    while not (tmp_path / "told").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    supervisor.kill()
    supervisor.wait()
    pids = [(tmp_path / name).read_text().strip() for name in ("worker", "agent")]
    while any(Path("/proc", pid).exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
