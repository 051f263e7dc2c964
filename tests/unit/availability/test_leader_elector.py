"""Real processes beside a real folder: one acts, killed it is followed, stopped it stands back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_disks import fill, small_disk

from flexo.availability.leader_elector import LeaderElector
from flexo.clusters.base import MayNotAct
from flexo_protos.leader_leases.file_store import FileLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS, Found

LEASE_S = 1.0
BOUND_S = 60.0
ACTING = """
import sys, time
from pathlib import Path
from flexo.availability.leader_elector import LeaderElector
from flexo.clusters.base import MayNotAct
from flexo_protos.leader_leases.file_store import FileLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS
folder, name, lease_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
elector = LeaderElector(FileLeaseStore(folder / "lease", OF_FLEXODS), name, lease_s)
elector.start()
with (folder / "acts").open("a", buffering=1) as acts:
    while not elector.lost:
        try:
            elector.check()
        except MayNotAct:
            time.sleep(0.01)
            continue
        acts.write(f"{name} {elector.epoch}\\n")
        time.sleep(0.005)
    acts.write(f"{name} lost\\n")
"""


class Process:
    """A process that writes into `acts` whenever it may act."""

    def __init__(self, folder: Path, name: str) -> None:
        command = [sys.executable, "-c", ACTING, str(folder), name, str(LEASE_S)]
        self.name, self.child = name, subprocess.Popen(command)

    def send(self, number: int) -> None:
        os.kill(self.child.pid, number)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Process]]:
    (tmp_path / "lease").mkdir()
    started: list[Process] = []

    def begin(name: str) -> Process:
        started.append(Process(tmp_path, name))
        return started[-1]

    yield begin
    for process in started:
        process.child.kill()
        process.child.wait()


def until(what: Callable[[], bool], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {BOUND_S} s"
        time.sleep(0.02)


def acts(folder: Path) -> list[str]:
    file = folder / "acts"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.processes
def test_one_acts_and_is_followed_when_it_is_killed_or_stopped_and_never_acts_again(
    start: Callable[[str], Process], tmp_path: Path
) -> None:
    def acting(name: str) -> bool:
        return bool(acts(tmp_path)) and acts(tmp_path)[-1].startswith(f"{name} ")

    processes = {name: start(name) for name in "ab"}
    until(lambda: len(acts(tmp_path)) > 20, "one acts")
    first = acts(tmp_path)[-1].split()[0]
    second = "b" if first == "a" else "a"
    processes[first].send(signal.SIGKILL)
    until(lambda: acting(second), "the other follows")
    processes["c"] = start("c")
    processes[second].send(signal.SIGSTOP)
    until(lambda: acting("c"), "the third follows")
    processes[second].send(signal.SIGCONT)
    until(lambda: f"{second} lost" in acts(tmp_path), "who was stopped notices")
    told = [line.split() for line in acts(tmp_path)]
    names = [name for name, epoch in told if epoch != "lost"]
    turns = [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]
    assert turns == [first, second, "c"], "each had one turn, and nobody acted in another's"
    epochs = [int(epoch) for _, epoch in told if epoch != "lost"]
    assert epochs == sorted(epochs)


@pytest.mark.thorough
def test_on_a_full_disk_one_keeps_its_turn_and_is_followed_when_it_is_killed(
    start: Callable[[str], Process], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "lease") as disk:
        a = start("a")
        until(lambda: len(list(disk.glob("active.*"))) == 4, "one acts, and has for a while")
        fill(disk)
        start("b")
        began = time.monotonic()
        until(lambda: time.monotonic() > began + 1.5 * LEASE_S, "a lease passes")
        fill(disk)
        assert {line.split()[0] for line in acts(tmp_path)} == {"a"}
        assert a.child.poll() is None, "it has kept its turn"
        a.send(signal.SIGKILL)
        until(lambda: acts(tmp_path)[-1].startswith("b "), "the other follows")


def test_who_leaves_hands_over_at_once(tmp_path: Path) -> None:
    a, b = (LeaderElector(FileLeaseStore(tmp_path, OF_FLEXODS), name, 30.0) for name in ("a:1", "b:1"))
    released = tmp_path / "active.1"
    released.write_text(
        '{"holder": "x", "token": "x", "epoch": 4, "beat": 0, "since_at": 0, "released": true}'
    )
    assert a.active is None
    a.start()
    until(a.holds, "nobody has to wait")
    b.step()
    assert b.active is not None
    assert (b.active.address, b.holds()) == ("a:1", False)
    with pytest.raises(MayNotAct, match="a:1"):
        b.check()
    a.leave(BOUND_S)
    assert a.lost
    b.step()
    assert b.holds()
    assert b.epoch > a.epoch


def test_without_its_folder_the_active_one_stands_back_and_says_why(tmp_path: Path) -> None:
    now = [100.0]
    folder = tmp_path / "shared"
    folder.mkdir()
    elector = LeaderElector(FileLeaseStore(folder, OF_FLEXODS), "a:1", 5.0, clock=lambda: now[0])
    for now[0] in (100.0, 105.0):
        elector.step()
    assert elector.holds()
    folder.rename(tmp_path / "away")
    now[0] = 106.0
    elector.step()
    assert elector.holds(), "for as long as the lease lasts"
    assert str(folder) in elector.trouble
    now[0] = 109.5
    assert elector.lost
    (tmp_path / "away").rename(folder)
    elector.step()
    assert elector.lost, "for good"


class FailingStore(FileLeaseStore):
    """Raises what nobody expects, so many times."""

    failures = 3

    def read(self) -> Found:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError("as the test says")
        return super().read()


def test_a_standby_whose_store_fails_in_an_unexpected_way_says_so_and_takes_over_all_the_same(
    tmp_path: Path,
) -> None:
    store = FailingStore(tmp_path, OF_FLEXODS)
    elector = LeaderElector(store, "a:1", LEASE_S)
    elector.step()
    assert "ZeroDivisionError: as the test says" in elector.trouble
    elector.start()
    until(elector.holds, "it takes over")
    assert (elector.trouble, elector.failed) == ("", "")
    elector.leave(BOUND_S)


def test_a_thread_that_dies_is_seen_at_the_elector(tmp_path: Path) -> None:
    class Dying(FileLeaseStore):
        def read(self) -> Found:
            raise SystemExit("as the test says")

    elector = LeaderElector(Dying(tmp_path, OF_FLEXODS), "a:1", LEASE_S)
    elector.start()
    until(lambda: bool(elector.failed), "it is seen")
    assert "as the test says" in elector.failed
