"""Two flexods beside one slurmctld: whatever happens to one, the other follows, and no satellite ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from shown_outputs import shape, shown

from flexo_bench.etcd_process import running
from flexo_lab import Lab
from flexo_lab.flexod import start_flexod
from flexo_lab.ports import free_ports

BOUND_S = 120.0
TAKEOVER_S = 10.0
"""What docs/howto/high-availability.md promises, from the signal on: `lease_s`, and as much again."""
SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
ELASTIC = f"""#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --elastic=1-2
unset FLEXO_DAEMON  # flexo.toml names both
exec flexo run python {shlex.quote(str(SCRIPT))} --step-seconds 0.2 --epochs 100000
"""
ACTS = re.compile(r"^(\S+) \[\w+ *\] (grow|shrink|extend|cancel|failure|order|lend|preempt)\b", re.MULTILINE)
"""What flexod logs of what it does, with the time."""
TURN = re.compile(r"^(\S+) \[\w+ *\] this flexod is the active one now\b", re.MULTILINE)
BEGUN = re.compile(r" active: .*, ([\d.]+) s after it got the lease$", re.MULTILINE)


@dataclass
class One:
    """One of the two."""

    lab: Lab
    address: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = self.lab.environment(self.lab.spec.flexod_account)
        self.process = start_flexod(self.lab.layout, self.lab.record, environment, self.address)

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGKILL)
            self.process.wait()

    def log(self) -> str:
        return (self.lab.layout.logs / f"flexod-{self.address.rpartition(':')[2]}.log").read_text()

    def acts(self) -> list[str]:
        """When it did anything, as its log has it (UTC)."""
        return [match[1] for match in ACTS.finditer(self.log())]

    def acts_since(self) -> float:
        """When it last began to act, seconds since the epoch, by its own words: who asks it may be late."""
        log = self.log()
        return datetime.fromisoformat(TURN.findall(log)[-1]).timestamp() + float(BEGUN.findall(log)[-1])


@contextmanager
def _two(lab: Lab, lease: str) -> Iterator[tuple[One, One]]:
    """The lab's configuration names two flexods; neither of them is started."""
    (port,) = free_ports(1, frozenset(lab.ports.all()))
    both = One(lab, lab.daemon_address), One(lab, f"127.0.0.1:{port}")
    with lab.layout.flexo_toml.open("a") as toml:
        hosts = ", ".join(f'"{one.address}"' for one in both)
        toml.write(f'\n[high_availability]\nhosts = [{hosts}]\nlease = "{lease}"\n')
    try:
        yield both
    finally:
        for one in both:
            one.end()


@pytest.fixture
def pair(spared_lab: Callable[..., Lab]) -> Iterator[tuple[One, One]]:
    """With the lease in a folder that both share."""
    lab = spared_lab(nodes=2, gpus_per_node=1, infer_nodes=0, flexod=False)
    with _two(lab, f"file://{lab.layout.flexod}") as both:
        yield both


@pytest.fixture
def pair_by_etcd(spared_lab: Callable[..., Lab], tmp_path: Path) -> Iterator[tuple[One, One]]:
    """With the lease in an etcd of their own."""
    lab = spared_lab(nodes=1, gpus_per_node=1, infer_nodes=0, flexod=False)
    with running(tmp_path) as etcd, _two(lab, f"etcd://{etcd.host}") as both:
        yield both


def _wait(what: Callable[[], Any], sentence: str) -> float:
    """Seconds until `what` is true."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < BOUND_S, f"{sentence} within {BOUND_S:.0f} s"
        time.sleep(0.1)
    return time.monotonic() - begun


def _status(one: One, *others: One) -> dict[str, Any]:
    """By whoever of them is active; {} if none is."""
    addresses = ",".join(each.address for each in (one, *others))
    done = one.lab.run(["flexo", "status", "--json", "--daemon", addresses], check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def _active(one: One) -> bool:
    """Whether it is the last of its words that it is; its command would wait for the other's answer."""
    return " active: " in _last_words(one)


def _stands_by(one: One) -> bool:
    return " stands by: " in _last_words(one)


def _last_words(one: One) -> str:
    return next((line for line in reversed(one.log().splitlines()) if line.startswith("flexod ")), "")


def _takeover_s(harm: Callable[[], None], heir: One, sentence: str) -> float:
    """Seconds until `heir` acts, from when the other is harmed; less than what is promised."""
    harmed_at = time.time()
    harm()
    _wait(lambda: _active(heir), sentence)
    took = heir.acts_since() - harmed_at
    assert 0 < took < TAKEOVER_S
    return took


def _leads(one: One) -> bool:
    """Whether the job's leader has come to it since it became active."""
    return "leader attached" in one.log().rpartition(" active: ")[2]


def _grants(one: One) -> dict[str, int]:
    """Grants and their satellites, as flexod has them."""
    jobs = json.loads(one.lab.run(["flexo", "jobs", "--json", "--daemon", one.address]).stdout)["jobs"]
    return {grant["grant_id"]: grant["slurm_job_id"] for job in jobs for grant in job["grants"]}


def _running(lab: Lab) -> set[int]:
    listed = ["squeue", "--noheader", "--partition=flex", "--states=R", "--format=%A"]
    return {int(line) for line in lab.run(listed).stdout.split()}


def _now() -> str:
    """As logs have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(600)
def test_whatever_happens_to_the_active_one_the_other_follows_and_the_job_notices_nothing(
    pair: tuple[One, One], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = pair
    lab, told = a.lab, []
    a.start()
    _wait(lambda: _active(a), "the first is active")
    b.start()
    base = int(lab.run(["sbatch", "--parsable", "--output=%j.out"], stdin=ELASTIC).stdout)
    output = lab.scratch / f"{base}.out"
    _wait(lambda: output.exists() and "2 workers on 2 nodes" in output.read_text(), "it trains on both nodes")
    satellites, grants = _running(lab), _grants(a)
    assert len(satellites) == 1
    assert set(grants.values()) == satellites

    def unharmed(active: One) -> None:
        """The same satellites, by the same grants."""
        assert _running(lab) == satellites
        assert _grants(active) == grants

    took = _takeover_s(a.end, b, "the second follows the first, which was killed")
    told.append(f"SIGKILL: the other is active after {took:.1f} s")
    told.append(f"SIGKILL: the leader is there {_wait(lambda: _leads(b), 'the leader comes'):.1f} s later")
    unharmed(b)

    a.start()
    _wait(lambda: _stands_by(a), "the first is back, and waits")
    (page,) = shown("howto/high-availability.md")
    status = lab.run(["flexo", "status", "--daemon", b.address]).stdout
    assert page == [line for line in shape(status) if line.startswith("flexod")]
    took = _takeover_s(lambda: b.send(signal.SIGSTOP), a, "the first follows the second, which was stopped")
    told.append(f"SIGSTOP: the other is active after {took:.1f} s")
    told.append(f"SIGSTOP: the leader is there {_wait(lambda: _leads(a), 'the leader comes'):.1f} s later")
    woken_at, epoch = _now(), _status(a)["availability"]["epoch"]
    b.send(signal.SIGCONT)
    _wait(lambda: "stands by" in lab.run(["flexo", "status", "--daemon", b.address], check=False).stderr,
          "who was stopped stands by")  # fmt: skip
    _wait(lambda: _status(a, b)["availability"]["flexods"][1]["answers"], "both answer")
    assert _active(a)
    assert _status(a)["availability"]["epoch"] == epoch
    assert [at for at in b.acts() if at >= woken_at] == [], "it has done nothing since it woke"
    doctor = json.loads(lab.run(["flexo", "doctor", "--json"], check=False).stdout)["findings"]
    assert {each["check"]: each["level"] for each in doctor if each["check"].startswith("availability.")} == {
        "availability.active": "ok",
        "availability.folder": "ok",
    }
    unharmed(a)

    took = _takeover_s(lambda: a.send(signal.SIGTERM), b, "the second follows the first, which was ended")
    told.append(f"SIGTERM: the other is active after {took:.1f} s")
    _wait(lambda: _leads(b), "the leader comes")
    unharmed(b)
    before = json.loads(lab.run(["flexo", "jobs", "--json", "--daemon", b.address]).stdout)["jobs"][0]
    _wait(
        lambda: (
            json.loads(lab.run(["flexo", "jobs", "--json", "--daemon", b.address]).stdout)["jobs"][0][
                "batches_committed"
            ]
            > before["batches_committed"]
        ),
        "the job goes on",
    )
    with capsys.disabled():
        print("", *told, sep="\n  ")


@pytest.mark.slow
@pytest.mark.etcd
@pytest.mark.timeout(300)
def test_by_a_lease_in_etcd_the_other_follows_one_that_is_killed_and_one_that_is_stopped(
    pair_by_etcd: tuple[One, One], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = pair_by_etcd
    told = []
    a.start()
    _wait(lambda: _active(a), "the first is active")
    b.start()
    _wait(lambda: _stands_by(b), "the second stands by")

    took = _takeover_s(a.end, b, "the second follows the first, which was killed")
    told.append(f"etcd, SIGKILL: the other is active after {took:.1f} s")

    a.start()
    _wait(lambda: _stands_by(a), "the first is back, and waits")
    took = _takeover_s(lambda: b.send(signal.SIGSTOP), a, "the first follows the second, which was stopped")
    told.append(f"etcd, SIGSTOP: the other is active after {took:.1f} s")
    b.send(signal.SIGCONT)
    _wait(lambda: _stands_by(b), "who was stopped stands by")
    assert _active(a)
    with capsys.disabled():
        print("", *told, sep="\n  ")
