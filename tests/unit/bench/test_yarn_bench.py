"""The parts of make bench-yarn that need no YARN: threads of a ResourceManager, roles, lateness, goals."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from flexo_bench.fidelity.submitting import SCRIPT
from flexo_bench.yarn import process, rm_threads, samples
from flexo_bench.yarn.beating import Beating
from flexo_bench.yarn.grants import Grants, Used
from flexo_bench.yarn.polling import Poll, Polled, Stretch
from flexo_bench.yarn.process import Cost, Costs, Role
from flexo_bench.yarn.report import Report
from flexo_bench.yarn.rm_threads import RmCpu, Snapshot
from flexo_bench.yarn.simulators import Workload

pytestmark = pytest.mark.thorough

THREADS = """\
Full thread dump OpenJDK 64-Bit Server VM (17.0.1):

"IPC Server handler 3 on default port 8032" #71 daemon prio=5 cpu={rpc}ms tid=0x1 nid=0x47 x
"IPC Server handler 3 on default port 8030" #72 daemon prio=5 cpu=900.00ms tid=0x2 nid=0x48 x
"Socket Reader #1 for port 8032" #73 prio=5 os_prio=0 cpu=250.00ms tid=0x3 nid=0x49 runnable
"qtp123-55" #74 daemon prio=5 cpu=500.00ms tid=0x4 nid=0x4a runnable
"AsyncCapacitySchedulerThread0" #75 daemon prio=5 cpu=4000.00ms tid=0x5 nid=0x4b x
"C2 CompilerThread0" #76 daemon prio=9 os_prio=0 cpu=125.00ms tid=0x6 nid=0x4c waiting

JNI global refs: 22, weak refs: 0
"""


class FakeProcess:
    """A process that prints its threads at each signal."""

    def __init__(self, output: Any) -> None:
        self.output, self.rpc = output, 1000

    def cpu_times(self) -> Any:
        return type("Times", (), {"user": self.rpc / 100, "system": 1.0})

    def send_signal(self, _signal: int) -> None:
        with self.output.open("a") as file:
            file.write(THREADS.format(rpc=f"{self.rpc}.00"))


def test_the_threads_that_answer_clients_are_told_from_the_others(tmp_path: Any) -> None:
    output = tmp_path / "rm.out"
    output.write_text('"qtp9-1" #1 cpu=99999.00ms nid=0x1\n')
    rm: Any = FakeProcess(output)
    early = rm_threads.snapshot(rm, output)
    rm.rpc = 1600
    late = rm_threads.snapshot(rm, output)
    spent = rm_threads.between(Snapshot(early.at, early.process_s, {}), late)
    assert spent.rpc == pytest.approx(1.6 + 0.25)
    assert spent.rest == pytest.approx(0.5)
    assert spent.asynchronous == pytest.approx(4.0)
    assert spent.jvm == pytest.approx(0.125)
    assert rm_threads.between(early, late).clients == pytest.approx(0.6)
    assert rm_threads.between(early, late).process == pytest.approx(6.0)


def test_a_beat_that_takes_too_long_makes_the_next_ones_late() -> None:
    beats = [lambda: time.sleep(0.05)] * 4
    beating = Beating(beats, interval_s=0.1, threads=1)
    time.sleep(0.5)
    beating.stop()
    late_s = beating.take_late_s()
    assert late_s[0] < 0.02
    assert max(late_s) > 0.1
    assert not beating.failed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_beat_that_fails_is_kept() -> None:
    def fail() -> None:
        raise ConnectionError("gone")

    beating = Beating([fail], 0.01, 1)
    beating.stop()
    assert isinstance(beating.failed[0], ConnectionError)


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (
            [sys.executable, "-m", "horovod_elastic.application_master", "--", "python", str(SCRIPT)],
            Role.MASTER,
        ),
        ([sys.executable, "/x/bin/flexo", "run", "--core=torch", "python", str(SCRIPT)], Role.MASTER),
        ([sys.executable, "-m", "horovod_elastic", "agent", "--slots", "1"], Role.AGENT),
        ([sys.executable, "-I", "-S", "/x/horovod_elastic/agent/supervisor.py"], Role.SUPERVISOR),
        ([sys.executable, str(SCRIPT), "--epochs", "1"], Role.WORKER),
        (["/bin/bash", "-c", f"python -m horovod_elastic.application_master -- python {SCRIPT}"], None),
        (["srun", "flexo", "run"], None),
    ],
)
def test_a_jobs_processes_have_roles(words: list[str], role: Role | None) -> None:
    assert process._role(words) is role


def test_an_interval_holds_the_median_and_is_wider_for_fewer_samples() -> None:
    few, many = [1.0, 2.0, 9.0], [1.0, 2.0, 9.0] * 30
    wide, narrow = (samples.estimate(each, lambda some: samples.percentile(some, 50)) for each in (few, many))
    assert wide.low <= wide.value <= wide.high
    assert narrow.high - narrow.low < wide.high - wide.low
    assert samples.difference([1.1, 1.1], [1.0, 1.0]).value == pytest.approx(0.1)


def stretch(clients_s: float) -> Stretch:
    return Stretch(RmCpu(60.0, 30.0, clients_s, 0.0, 20.0, 1.0), (0.1,), 0.0, 60)


def report(running_s: float, more_mib: float, poll_s: float, clients_s: float) -> Report:
    def costs(rss_mib: float) -> tuple[Cost, ...]:
        return (Cost(Role.MASTER, 1, rss_mib, 30.0, 0.002),)

    polled = Polled(
        Workload("10.0.0.1", 2000, 1.0, 400, 20, 20, 3.0), asynchronous=True, jobs=540, containers=16000
    )
    polled.polls += [Poll(poll_s, 0.01, {"nodes": (1, 0.01)})] * 20
    polled.without.append(stretch(0.0))
    polled.beside.append(stretch(clients_s))
    grants = Grants([Used(0.5, running_s, 5.0)] * 20, [Used(0.0, 0.1)] * 20)
    return Report(
        "make bench-yarn", {}, grants, Costs(4, 60.0, costs(40.0 + more_mib), costs(40.0)), [polled]
    )


def verdicts(found: Report) -> dict[str, str]:
    return {goal.name: goal.verdict for goal in found.goals()}


def test_figures_below_their_bounds_are_reached_and_those_above_are_missed() -> None:
    good = verdicts(report(2.0, 5.0, 0.2, 0.3))
    assert set(good.values()) == {"reached"}
    bad = verdicts(report(7.0, 41.0, 0.31, 0.9))
    assert {name for name, verdict in bad.items() if verdict == "missed"} == {
        "grant_p95_s",
        "master_more_rss_mib",
        "poll_p95_s_2000_nodes_asynchronous",
        "rm_part_2000_nodes_asynchronous",
    }


def test_the_text_has_every_part_and_its_rival() -> None:
    text = "\n".join(report(2.0, 5.0, 0.2, 0.3).lines())
    for said in ("satellite", "application that waits", "Slurm master", "without flexod", "1.00%", "300 ms"):
        assert said in text, said
