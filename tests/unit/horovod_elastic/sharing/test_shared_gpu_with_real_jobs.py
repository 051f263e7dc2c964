"""Real jobs share a pretended GPU. The guarantee job never fails or waits, whatever the other one does."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sharing_world import GPU, SHARE, World, world

from horovod_elastic.sharing import environment
from horovod_elastic.sharing.supervisor import ENDED

pytest.importorskip("torch")
pytestmark = [pytest.mark.processes, pytest.mark.thorough]

ALLOWED_NS = 50_000_000


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def pair(shared: World, *statements: str, idle_s: float = 0.15, **how: float) -> tuple:  # type: ignore[type-arg]
    """A guarantee job and an opportunistic one that fills its gaps."""
    guarantee = shared.start("guarantee", *statements, idle_s=idle_s, **how)
    shared.wait(lambda: guarantee.steps > 3)
    opportunistic = shared.start("opportunistic")
    shared.wait(lambda: opportunistic.steps > 20)
    return guarantee, opportunistic


def test_from_50_ms_after_the_gate_closes_until_it_opens_the_other_job_does_no_work(shared: World) -> None:
    hold = "model._forward_hooks or model.register_forward_hook(lambda *_: time.sleep(0.2))"
    guarantee, opportunistic = pair(shared, hold)
    before = guarantee.steps
    shared.wait(lambda: guarantee.steps > before + 20)
    guarantee.kill()
    begins, lasts, works = guarantee.lines("begin"), guarantee.lines("last"), opportunistic.lines("op")
    first = next(began for began in begins if began > works[0])
    flights = [(began, next((at for at in lasts if at > began), 0)) for began in begins if began > first]
    judged = [(began, ended) for began, ended in flights if ended - began > 2 * ALLOWED_NS]
    late = [at for at in works if any(began + ALLOWED_NS < at < ended for began, ended in judged)]
    assert len(judged) > 10
    assert late == []


def test_a_dead_coordinator_closes_the_gate_and_stops_no_guarantee_job(shared: World) -> None:
    guarantee, opportunistic = pair(shared)
    shared.kill_coordinator()
    time.sleep(1.5)
    before, others = opportunistic.steps, guarantee.steps
    time.sleep(1.5)
    assert opportunistic.steps == before
    assert guarantee.steps > others + 3
    shared.start_coordinator()
    shared.wait(lambda: opportunistic.steps > before + 20)
    shared.wait(lambda: shared.gpu().guarantee is not None and shared.gpu().opportunistic is not None)


def test_a_guarantee_job_that_is_stopped_closes_the_gate(shared: World) -> None:
    guarantee, opportunistic = pair(shared)
    os.killpg(guarantee.process.pid, signal.SIGSTOP)
    time.sleep(1.5)
    before = opportunistic.steps
    time.sleep(1.0)
    assert opportunistic.steps == before
    os.killpg(guarantee.process.pid, signal.SIGCONT)
    shared.wait(lambda: opportunistic.steps > before + 5)


def test_a_guarantee_job_that_is_killed_leaves_the_gpu_to_the_other(shared: World) -> None:
    guarantee, opportunistic = pair(shared)
    guarantee.kill()
    before = opportunistic.steps
    shared.wait(lambda: opportunistic.steps > before + 100)
    shared.wait(lambda: shared.gpu().gate == "open")


def test_three_candidates_have_the_gpu_one_after_the_other(shared: World) -> None:
    jobs = [shared.start("opportunistic", seconds=10) for _ in range(3)]
    shared.wait(lambda: len(shared.gpu().waiting) == 2)
    assert [job.process.wait(timeout=60) for job in jobs] == [0, 0, 0]
    spans = sorted((job.lines("step")[0], job.lines("step")[-1]) for job in jobs)
    assert all(former[1] < later[0] for former, later in itertools.pairwise(spans))


def evict(world: World, gpu: str = GPU) -> subprocess.CompletedProcess[str]:
    """What a site's prolog runs."""
    command = [*SHARE, "evict", "--folder", str(world.folder), "--gpu", gpu, "--within", "10"]
    return subprocess.run(command, env=world.environment(), capture_output=True, text=True, check=False)


def test_an_evicted_job_is_gone_when_the_eviction_returns(shared: World) -> None:
    opportunistic = shared.start("opportunistic")
    shared.wait(lambda: opportunistic.steps > 5)
    assert evict(shared).returncode == 0
    after = time.monotonic_ns()
    assert opportunistic.process.wait(timeout=60) == ENDED
    assert max(opportunistic.lines("step")) < after
    later = shared.start("opportunistic")
    shared.start("guarantee", idle_s=0.15)
    shared.wait(lambda: later.steps > 5)


def test_an_eviction_where_nobody_is_returns_at_once_and_one_of_a_gpu_that_is_not_there_says_so(
    shared: World,
) -> None:
    assert evict(shared).returncode == 0
    refused = evict(shared, "cpu7")
    assert refused.returncode == 1
    assert GPU in refused.stderr


def test_a_surge_of_the_guarantee_job_moves_the_others_tensors_out_and_back(shared: World) -> None:
    surge = (
        "held.append(torch.zeros(220 << 20, dtype=torch.uint8)) if os.path.exists(log + '.surge') else None"
    )
    ebb = "held.clear() if not os.path.exists(log + '.surge') else held.__setitem__(slice(4, None), [])"
    guarantee, opportunistic = pair(shared, surge, ebb)
    shared.wait(lambda: shared.gpu().limit > 400 << 20)
    Path(str(guarantee.log) + ".surge").touch()
    shared.wait(lambda: shared.gpu().opportunistic.moved_out > 0)  # type: ignore[union-attr]
    before = guarantee.steps
    time.sleep(1)
    assert guarantee.steps > before
    assert shared.gpu().limit < 100 << 20
    guarantee.kill()
    stood = opportunistic.steps
    shared.wait(lambda: opportunistic.steps > stood + 20)


def test_a_job_that_leaks_is_held_at_its_limit(shared: World) -> None:
    guarantee = shared.start("guarantee", idle_s=0.15)
    leak = "held.append(torch.zeros(20 << 20, dtype=torch.uint8))"
    opportunistic = shared.start("opportunistic", leak)
    shared.wait(lambda: shared.gpu().opportunistic is not None and shared.gpu().opportunistic.moved_out > 0)
    held = shared.gpu().opportunistic
    assert held is not None
    assert held.moved_out < 1 << 30
    before, others = opportunistic.steps, guarantee.steps
    shared.wait(lambda: guarantee.steps > others + 10)
    assert opportunistic.steps - before < 60
    assert guarantee.process.poll() is None
    opportunistic.kill()  # it dies while all of its tensors are out
    shared.wait(lambda: shared.gpu().opportunistic is None)
    assert guarantee.process.poll() is None
    shared.start("opportunistic")
    shared.wait(lambda: shared.gpu().opportunistic is not None)


def test_a_job_that_reaches_no_hook_is_stopped(shared: World) -> None:
    """It is stopped for what it works beside the other's mini-batches: these take half of the time here."""
    guarantee = shared.start("guarantee", idle_s=0.05, width=1024)
    shared.wait(lambda: guarantee.steps > 3)
    loop = "import torch, time\na = torch.ones(64, 64)\nwhile True: a @ a"
    job = shared.start_command("opportunistic", [sys.executable, "-c", loop])

    def state() -> str:
        held = shared.gpu().opportunistic
        if held is None:
            return ""
        return Path(f"/proc/{held.pid}/stat").read_text().rpartition(")")[2].split()[0]

    shared.wait(lambda: state() == "T")
    assert job.process.poll() is None
    assert guarantee.process.poll() is None


ENDING = """
import os, sys
from horovod_elastic.sharing.supervisor import Supervisor
sys.exit(Supervisor(stop_s=0.3, end_s=0.7).run(sys.argv[1:], os.environ))
"""


def test_a_job_that_stays_without_a_hook_is_ended(shared: World) -> None:
    shared.start("guarantee", idle_s=0.05)
    loop = "import torch, time\na = torch.ones(64, 64)\nwhile True: a @ a"
    added = environment.of_opportunistic(GPU, shared.folder)
    command = ["env", *(f"{name}={value}" for name, value in added.items()), sys.executable, "-c", ENDING]
    job = shared.start_command("", [*command, sys.executable, "-c", loop])
    assert job.process.wait(timeout=60) == 75
    assert "no gate" in job.said()


def test_if_the_supervisor_is_killed_all_processes_of_the_job_end(shared: World) -> None:
    opportunistic = shared.start("opportunistic")
    shared.wait(lambda: opportunistic.steps > 5 and shared.gpu().opportunistic is not None)
    held = shared.gpu().opportunistic
    assert held is not None
    assert held.pid != opportunistic.process.pid
    os.kill(opportunistic.process.pid, signal.SIGKILL)
    shared.wait(lambda: not Path(f"/proc/{held.pid}").exists() or shared.gpu().opportunistic is None)
    shared.wait(lambda: shared.gpu().opportunistic is None)


def test_both_jobs_are_preempted_at_once(shared: World) -> None:
    for job in pair(shared):
        job.kill()
    shared.wait(lambda: shared.gpu().guarantee is None and shared.gpu().opportunistic is None)
    again = shared.start("guarantee", idle_s=0.05)
    shared.wait(lambda: again.steps > 5)


def test_a_job_ends_with_its_own_exit_code_and_gets_signals(shared: World) -> None:
    exits = shared.start_command("opportunistic", [sys.executable, "-c", "raise SystemExit(7)"])
    assert exits.process.wait(timeout=60) == 7
    sleeps = shared.start_command("opportunistic", ["sleep", "600"])
    time.sleep(1.0)
    sleeps.process.send_signal(signal.SIGTERM)
    assert sleeps.process.wait(timeout=60) == 128 + signal.SIGTERM


def test_without_a_coordinator_a_guarantee_job_trains(tmp_path: Path) -> None:
    alone = World(tmp_path)
    try:
        job = alone.start("guarantee", seconds=1)
        assert job.process.wait(timeout=60) == 0
        assert job.steps > 3
    finally:
        alone.end()
