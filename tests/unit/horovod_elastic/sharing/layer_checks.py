"""The layer inside a process: a gate that fails closed, marks of flights, and memory below its limit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from horovod_elastic.sharing import environment  # noqa: E402
from horovod_elastic.sharing.coordinator import Coordinator  # noqa: E402
from horovod_elastic.sharing.devices import PretendedDevice  # noqa: E402
from horovod_elastic.sharing.layer import torchs_own, universal  # noqa: E402
from horovod_elastic.sharing.layer.flights import MOST_QUEUED, Flights  # noqa: E402
from horovod_elastic.sharing.layer.gate import Gate  # noqa: E402
from horovod_elastic.sharing.layer.guarantee import Marks, OnTheCpu  # noqa: E402
from horovod_elastic.sharing.layer.hooks import Guarantee, Opportunistic  # noqa: E402
from horovod_elastic.sharing.layer.memory import Memory  # noqa: E402
from horovod_elastic.sharing.layer.place import Pretended  # noqa: E402
from horovod_elastic.sharing.pages import (  # noqa: E402
    GatePage,
    GateState,
    GuaranteePage,
    OpportunisticPage,
    Page,
)

ROOT = Path(__file__).resolve().parents[4]


class Place:
    """A device whose memory a test sets."""

    kind = "cpu"

    def __init__(self) -> None:
        self.held = 0
        self.trimmed = 0

    def used(self) -> int:
        return self.held

    def peak(self) -> int:
        return self.held

    def limit(self, limit: int) -> None:
        pass

    def trim(self) -> None:
        self.trimmed += 1
        self.held //= 2

    def drain(self) -> None:
        pass


class Rig:
    """A gate with the pages of a coordinator and of a guarantee job, which the test writes."""

    def __init__(self) -> None:
        self.order, self.guarantee = GatePage(Page.make("gate")), GuaranteePage(Page.make("guarantee"))
        self.page = OpportunisticPage(Page.make("opportunistic"))
        self.place = Place()
        self.began = 0
        self.gate = Gate(self.page, Memory(self.place), self._begin)
        self.gate.order, self.gate.guarantee = self.order, self.guarantee
        self.order.page.words[GatePage.LIMIT] = 1 << 40
        self.order.page.words[GatePage.EVERY] = 1

    def _begin(self) -> None:
        self.began += 1

    def say(self, state: GateState) -> None:
        self.order.page.halves[GatePage.STATE] = state

    def fly(self, flying: bool) -> None:
        self.guarantee.page.halves[GuaranteePage.IN_FLIGHT] = flying
        which = GuaranteePage.BEGAN if flying else GuaranteePage.ENDED
        self.guarantee.page.words[which] = time.monotonic_ns()

    def beat(self) -> None:
        self.order.page.beat()
        self.guarantee.page.beat()

    def passes(self, seconds: float = 0.3) -> bool:
        """Whether a boundary lets the job pass within some time. One that does not is opened then."""
        thread = threading.Thread(target=self.gate.boundary)
        thread.start()
        thread.join(seconds)
        passed = not thread.is_alive()
        saved = self.gate.order
        while thread.is_alive():
            self.gate.order = GatePage(Page.make("open"))
            self.gate.order.page.words[GatePage.LIMIT] = 1 << 40
            self.gate.order.page.halves[GatePage.STATE] = GateState.OPEN
            thread.join(0.2)
        self.gate.order = saved
        return passed


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.beat()
    return made


def test_a_gate_that_is_open_lets_pass_whatever_the_guarantee_job_does(rig: Rig) -> None:
    rig.say(GateState.OPEN)
    rig.fly(True)
    assert rig.passes()
    assert (rig.page.passes, rig.began) == (1, 1)


def test_a_gate_for_gaps_is_closed_in_flights_only(rig: Rig) -> None:
    rig.say(GateState.GAPS)
    assert rig.passes()
    rig.fly(True)
    rig.beat()
    assert not rig.passes()
    rig.fly(False)
    rig.beat()
    assert rig.passes()


@pytest.mark.parametrize("missing", ["order", "guarantee", "fresh order", "fresh guarantee", "open state"])
def test_whatever_is_missing_or_stale_closes_the_gate(rig: Rig, missing: str) -> None:
    rig.say(GateState.CLOSED if missing == "open state" else GateState.GAPS)
    if missing in ("order", "guarantee"):
        setattr(rig.gate, missing, None)
    elif missing.startswith("fresh"):
        page = (rig.order if missing == "fresh order" else rig.guarantee).page
        page.words[1] = time.monotonic_ns() - 1_100_000_000
    assert not rig.passes()


def test_who_stands_at_the_gate_passes_as_soon_as_the_flight_ends(rig: Rig) -> None:
    from horovod_elastic.sharing import futex

    rig.say(GateState.GAPS)
    rig.fly(True)
    thread = threading.Thread(target=rig.gate.boundary)
    thread.start()
    while not rig.page.waiting:
        rig.beat()
    rig.beat()
    rig.fly(False)
    futex.wake(rig.guarantee.page.address)
    thread.join(5)
    assert not thread.is_alive()
    assert not rig.page.waiting


def test_a_gap_has_to_last_as_long_as_the_order_says(rig: Rig) -> None:
    rig.say(GateState.GAPS)
    rig.fly(False)
    rig.order.page.words[GatePage.PATIENCE] = 10**12
    assert not rig.passes()
    rig.order.page.words[GatePage.PATIENCE] = 10_000_000
    rig.beat()
    assert rig.passes()


def test_with_halved_gaps_every_second_one_is_left_empty(rig: Rig) -> None:
    rig.say(GateState.GAPS)
    rig.order.page.words[GatePage.EVERY] = 2
    rig.guarantee.page.words[GuaranteePage.GAPS] = 4
    assert rig.passes()
    rig.guarantee.page.words[GuaranteePage.GAPS] = 5
    rig.beat()
    assert not rig.passes()


def test_work_into_a_flight_is_a_leak_and_waiting_is_none(rig: Rig) -> None:
    rig.say(GateState.GAPS)
    assert rig.passes()
    rig.fly(True)
    busy = time.thread_time()
    while time.thread_time() - busy < 0.01:
        pass
    rig.beat()
    rig.passes(0.05)
    assert rig.page.leaks.count <= 1
    before = rig.page.leaks.count
    rig.fly(True)
    rig.beat()
    rig.passes(0.05)
    assert rig.page.leaks.count <= before + 1


def test_a_lower_limit_is_obeyed_at_a_closed_gate_too(rig: Rig) -> None:
    rig.place.held = 1000
    rig.order.page.words[GatePage.LIMIT] = 600
    rig.order.page.words[GatePage.EPOCH] = 1
    assert not rig.passes()
    assert rig.place.trimmed >= 1
    assert rig.page.memory <= 600


def test_live_tensors_leave_and_come_back_with_the_limit() -> None:
    memory, held = Memory(Pretended()), torch.arange(1 << 18)
    assert not memory.obey(1000)
    assert held.untyped_storage().nbytes() == 0
    assert memory.moved >= 1 << 21
    assert memory.used() == 0
    assert not memory.obey(1000)
    assert memory.obey(1 << 40)
    assert (memory.moved, int(held.sum())) == (0, (1 << 18) * ((1 << 18) - 1) // 2)


class Counted(Pretended):
    """A pretended device that notes what costs time."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = self.trims = 0

    def count(self) -> int:
        self.counts += 1
        return super().count()

    def trim(self) -> None:
        self.trims += 1
        super().trim()


def test_a_job_that_stands_at_its_gate_counts_no_tensors_again_and_again() -> None:
    memory, held = Memory(place := Counted()), torch.ones(1 << 18)
    assert not memory.obey(1000)
    before = place.counts
    assert not any(memory.obey(1000) for _ in range(50))
    assert place.counts == before
    assert memory.obey(1 << 40)  # a new limit is obeyed at once
    assert held.sum() == 1 << 18


def test_a_limit_that_cannot_be_obeyed_is_tried_in_a_hundredth_of_the_time() -> None:
    memory, held = Memory(place := Counted()), torch.ones(1 << 18)
    memory.may_move = False
    assert not any(memory.obey(1000) for _ in range(50))
    assert place.trims == 1
    assert not memory.obey(999)
    assert place.trims == 2
    assert memory.obey(held.nbytes + (1 << 40))


def test_where_tensors_may_not_move_the_job_stays_out_of_the_gate() -> None:
    memory, held = Memory(Pretended()), torch.ones(1 << 18)
    memory.may_move = False
    assert not memory.obey(1000)
    assert held.untyped_storage().nbytes() > 0


# --- the guarantee job's marks
# ------------------------------------------------------------------------------


@pytest.fixture
def marks() -> tuple[Marks, GuaranteePage]:
    page = GuaranteePage(Page.make("guarantee"))
    return Marks(page, Place(), OnTheCpu()), page


def test_a_flight_is_from_the_first_module_to_the_step(marks: tuple[Marks, GuaranteePage]) -> None:
    made, page = marks
    optimizer = object()
    for count in range(1, 4):
        made.before_module("root")
        made.before_module("child")
        assert page.in_flight
        made.after_module("child")
        made.after_module("root")
        assert page.in_flight
        made.after_step(optimizer)
        assert not page.in_flight
        assert page.cycles.count == page.gaps.count == count - 1


def test_without_gradients_a_flight_ends_with_the_outermost_module(
    marks: tuple[Marks, GuaranteePage],
) -> None:
    made, page = marks
    with torch.no_grad():
        made.before_module("root")
        made.after_module("child")
        assert page.in_flight
        made.after_module("root")
    assert not page.in_flight


def test_of_several_optimizers_in_a_mini_batch_one_counts_steps(marks: tuple[Marks, GuaranteePage]) -> None:
    made, page = marks
    first, second = object(), object()
    for _ in range(5):
        made.after_step(first)
        made.after_step(second)
    assert page.cycles.count == 4
    for _ in range(150):
        made.after_step(second)  # the first one is not used any more
    assert page.cycles.count > 40


def test_work_that_is_not_done_yet_keeps_the_flight(marks: tuple[Marks, GuaranteePage]) -> None:
    later: list[Any] = []

    class Later:
        def after_work(self, flight: int, landed: Any) -> None:
            later.append(lambda: landed(flight))

    page = GuaranteePage(Page.make("guarantee"))
    made = Marks(page, Place(), Later())
    made.before_module("root")
    made.after_step(1)
    assert page.in_flight
    made.before_module("root")  # the next step begins while the GPU still works
    later.pop()()
    assert page.in_flight
    made.after_step(1)
    later.pop()()
    assert not page.in_flight


# --- hooks
# --------------------------------------------------------------------------------------------------


def train(steps: int = 1) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.fixture
def sharing(tmp_path: Path) -> environment.Sharing:
    return environment.Sharing(environment.Role.GUARANTEE, "g0", tmp_path)


def test_an_unshared_guarantee_job_has_one_hook_and_it_reads_a_flag(sharing: environment.Sharing) -> None:
    from torch.nn.modules import module as modules

    layer = Guarantee(sharing)
    layer.install()
    order = GatePage(Page.make("gate"))
    layer.ordered(order)
    before = len(modules._global_forward_pre_hooks)
    train(2)
    assert len(modules._global_forward_pre_hooks) == before - 1, "the hook of the first module is gone"
    order.page.words[GatePage.SHARED] = 1
    train(3)
    assert len(modules._global_forward_pre_hooks) == before
    assert layer.page.gaps.count == 1
    order.page.words[GatePage.SHARED] = 0
    train(2)
    assert len(modules._global_forward_pre_hooks) == before - 1
    assert not layer.page.in_flight
    layer.remove()


FORKS = """
import os, time, torch
from pathlib import Path

def connections():
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(link.startswith("socket:") for link in links)

torch.nn.Linear(2, 2)(torch.ones(2))
while not connections():
    time.sleep(0.05)
if child := os.fork():
    os.waitpid(child, 0)
else:
    print(connections(), flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("role", environment.Role)
def test_a_forked_child_has_no_connection_to_the_coordinator(tmp_path: Path, role: environment.Role) -> None:
    coordinator = Coordinator(tmp_path, [PretendedDevice("g0", 1 << 40)])
    thread = threading.Thread(target=coordinator.run)
    thread.start()
    added = environment.for_process(environment.Sharing(role, "g0", tmp_path))
    try:
        done = subprocess.run(
            [sys.executable, "-c", FORKS],
            env={**os.environ, **added},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        coordinator.end()
        thread.join()
    assert done.stdout == "0\n", done.stderr


def test_an_opportunistic_job_is_held_forward_backward_and_at_steps(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path, [PretendedDevice("g0", 1 << 40)])
    thread = threading.Thread(target=coordinator.run)
    thread.start()
    layer = Opportunistic(environment.Sharing(environment.Role.OPPORTUNISTIC, "g0", tmp_path))
    layer.install()
    try:
        began = time.monotonic()
        train()
        assert time.monotonic() - began > 1.0, "a coordinator that has just started opens no gate"
        page = layer.page
        assert page.passes >= 4 + 4 + 2, "four modules, their gradients, and a step"
        assert page.steps == 1
        assert page.started
    finally:
        layer.remove()
        coordinator.end()
        thread.join()
    before = layer.page.passes
    train()
    assert layer.page.passes == before


def test_a_queue_on_a_gpu_is_bounded_and_follows_how_long_operations_take() -> None:
    class Event:
        queued, took_ms = 0, 4.0

        def record(self) -> None:
            Event.queued += 1
            self.done = False

        def synchronize(self) -> None:
            if not self.done:
                self.done = True
                Event.queued -= 1

        def elapsed_time(self, other: Any) -> float:
            return Event.took_ms

    flights = Flights(Event)
    for _ in range(200):
        flights.boundary()
        assert Event.queued <= MOST_QUEUED + 1
    assert flights.every == 1
    Event.took_ms = 0.01
    for _ in range(4000):
        flights.boundary()
    assert flights.every > 8


def test_cuda_is_not_in_use_here() -> None:
    called: list[int] = []
    torchs_own.when_cuda_begins(lambda: called.append(1))
    if not torch.cuda.is_initialized():
        assert not torchs_own.cuda_is_in_use()
        assert not called


@pytest.mark.processes
def test_the_library_of_universal_memory_is_compiled_once_and_fails_without_a_driver(tmp_path: Path) -> None:
    import ctypes

    path = universal.library(tmp_path)
    made_at = path.stat().st_mtime_ns
    assert universal.library(tmp_path) == path
    assert path.stat().st_mtime_ns == made_at
    allocate = getattr(ctypes.CDLL(str(path)), universal.ALLOC)
    allocate.restype = ctypes.c_void_p
    if not torch.cuda.is_available():
        assert allocate(ctypes.c_ssize_t(1024), 0, None) is None


@pytest.mark.processes
def test_without_a_compiler_there_is_no_universal_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.raises(universal.NoUniversalMemory, match="compiled"):
        universal.library(tmp_path)


@pytest.fixture
def script_environment() -> dict[str, str]:
    path = os.pathsep.join(map(str, (ROOT / "daemon", ROOT, ROOT / "protos")))
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.processes
def test_a_process_that_imports_no_pytorch_loads_no_layer(script_environment: dict[str, str]) -> None:
    added = environment.for_process(
        environment.Sharing(environment.Role.OPPORTUNISTIC, "g0"), script_environment
    )
    script = "import sys; print('torch' in sys.modules, 'horovod_elastic.sharing.layer.hooks' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=script_environment | added,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.processes
def test_a_process_with_a_wrong_variable_does_not_start(script_environment: dict[str, str]) -> None:
    added = environment.for_process(environment.Sharing(environment.Role.GUARANTEE, "g0"), script_environment)
    added[environment.ROLE] = "king"
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"], env=script_environment | added, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "king" in done.stderr
