"""What horovod.torch's calls become before they reach a communicator; that one is a stand-in."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from says import says

torch = pytest.importorskip("torch")
pytest.importorskip("horovod")

from horovod_elastic.agent.worker_environment import INJECT  # noqa: E402
from horovod_elastic.core import choice  # noqa: E402
from horovod_elastic.core.c10d.layer import Layer  # noqa: E402
from horovod_elastic.core.c10d.requests import Operation, Reduction, Request  # noqa: E402
from horovod_elastic.core.c10d.work import Work  # noqa: E402
from horovod_elastic.core.interface import RankPlacement  # noqa: E402

FIRST = RankPlacement(1, 1, 3, 0, 1, 1, 3, "n1", "", 0)
"""Rank 1 of 3."""


@dataclass
class Communicator:
    """Keeps what is asked for until it is told to finish it."""

    place: RankPlacement = FIRST
    asked: list[Work] = field(default_factory=list)
    sets: dict[int, tuple[int, ...]] = field(default_factory=lambda: {0: (0, 1, 2)})
    result: int = -1
    at_once: bool = True
    waited_for: list[str] = field(default_factory=list)

    def submit(self, work: Work) -> None:
        self.asked.append(work)
        if self.at_once:
            self.finish(work)

    def finish(self, work: Work, error: Exception | None = None) -> None:
        work.result = self.result
        if work.request.operation is Operation.ADD_PROCESS_SET:
            work.result = max(self.sets) + 1
            self.sets[work.result] = work.request.members
        elif work.request.operation is Operation.REMOVE_PROCESS_SET:
            del self.sets[work.request.removed_set]
            work.result = 0
        work.finish(error)

    def wait(self, work: Work) -> None:
        self.waited_for.append(work.request.name)
        work.wait()

    def poll(self, work: Work) -> bool:
        return work.done()

    def process_sets(self) -> dict[int, tuple[int, ...]]:
        return self.sets

    def requests(self) -> list[Request]:
        return [work.request for work in self.asked]

    def names(self) -> list[str]:
        return [request.name for request in self.requests()]


class World:
    """A layer with a communicator behind it, and short ways to call it as mpi_ops.py does."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.layer = Layer()
        self.layer.communicator = communicator
        self.lib: Any = self.layer.mpi_lib
        self.library: Any = self.layer.library

    def call(self, operation: str, tensor: Any, *args: Any) -> int:
        first = tensor[0] if isinstance(tensor, list) else tensor
        name = f"horovod_torch_{operation}_async_{first.type().replace('.', '_')}"
        handle: int = getattr(self.lib, name)(tensor, *args)
        return handle

    def allreduce(self, tensor: Any, name: bytes | str = "", op: int = 1, process_set: Any = 0) -> int:
        return self.call("allreduce", tensor, tensor, 1, name, op, 1.0, 1.0, process_set)

    def alltoall(self, tensor: Any, splits: list[int], **options: Any) -> int:
        received = torch.empty(3, dtype=torch.int32)
        given = torch.tensor(splits, **{"dtype": torch.int32, **options})
        return self.call("alltoall", tensor, given, tensor.new(), received, b"x", 0)


@pytest.fixture
def world() -> World:
    return World(Communicator())


# --- calls become requests ----------------------------------------------------------------------------------


def test_each_operation_asks_for_what_its_arguments_say(world: World) -> None:
    tensor, output = torch.ones(6, 2), torch.empty(0)
    pair, outputs = [torch.ones(6, 2), torch.ones(4)], [torch.empty(0), torch.empty(0)]
    world.call("allreduce", tensor, torch.empty(6, 2), 1, b"a", 0, 2.0, 0.5, 0)
    world.call("grouped_allreduce", pair, outputs, 1, b"b", 3, 1.0, 1.0, 0)
    world.call("allgather", tensor, output, b"c", 0)
    world.call("grouped_allgather", pair, outputs, b"d", 0)
    world.call("broadcast", tensor, output, 2, b"e", 0)
    world.call("alltoall", tensor, torch.tensor([], dtype=torch.int32), output, torch.empty(3), b"f", 0)
    world.call("reducescatter", tensor, output, b"g", 1, 0, 2.0, 0.5)
    world.call("grouped_reducescatter", pair, outputs, b"h", 0, 0, 1.0, 1.0)
    one = Request(Operation.ALLREDUCE, "", dtype="torch.float32", shapes=((6, 2),))
    two = replace(one, shapes=((6, 2), (4,)), grouped=True)
    scatter = Operation.REDUCESCATTER
    assert world.communicator.requests() == [
        replace(one, name="allreduce.a", reduction=Reduction.AVERAGE, prescale=2.0, postscale=0.5),
        replace(two, name="grouped_allreduce.b", reduction=Reduction.MIN),
        replace(one, name="allgather.c", operation=Operation.ALLGATHER),
        replace(two, name="grouped_allgather.d", operation=Operation.ALLGATHER),
        replace(one, name="broadcast.e", operation=Operation.BROADCAST, root=2),
        replace(one, name="alltoall.f", operation=Operation.ALLTOALL, splits=(2, 2, 2)),
        replace(one, name="reducescatter.g", operation=scatter, prescale=2.0, postscale=0.5),
        replace(two, name="grouped_reducescatter.h", operation=scatter, reduction=Reduction.AVERAGE),
    ]


@pytest.mark.parametrize(
    ("operation", "kind", "there"),
    [
        *(("allreduce", kind, True) for kind in ("Int", "Long", "Half", "Float", "Double", "BFloat16")),
        *(("allreduce", kind, False) for kind in ("Byte", "Char", "Short", "Bool")),
        *(("broadcast", kind, True) for kind in ("Byte", "Char", "Short", "Half", "BFloat16")),
        *((operation, "Bool", False) for operation in ("allgather", "broadcast", "alltoall")),
        ("reducescatter", "Byte", False),
    ],
)
def test_horovod_finds_a_function_for_the_types_that_it_supports(
    world: World, operation: str, kind: str, there: bool
) -> None:
    for place in ("torch", "torch_cuda"):
        assert hasattr(world.lib, f"horovod_torch_{operation}_async_{place}_{kind}Tensor") is there


def test_calls_without_a_name_are_counted_by_kind_and_process_set(world: World) -> None:
    world.communicator.sets[4] = (1, 2)
    for process_set in (0, 4, 4, 0):
        world.allreduce(torch.ones(1), process_set=process_set)
    world.call("allgather", torch.ones(1), torch.empty(0), "", 0)
    numbered = [(request.process_set, request.name) for request in world.communicator.requests()]
    assert numbered == [
        (0, "allreduce.noname.1"),
        (4, "allreduce.noname.1"),
        (4, "allreduce.noname.2"),
        (0, "allreduce.noname.2"),
        (0, "allgather.noname.1"),
    ]


def test_counting_begins_anew_where_ranks_that_made_different_calls_meet(world: World) -> None:
    def join() -> None:
        world.lib.horovod_torch_wait_and_clear(world.lib.horovod_torch_join(torch.tensor(-1), -1))

    def next_generation() -> None:
        world.layer.communicator = world.communicator

    for meet in (join, next_generation, world.lib.horovod_torch_reset):
        world.allreduce(torch.ones(1))
        meet()
    world.allreduce(torch.ones(1))
    assert [name for name in world.communicator.names() if name != "join"] == 4 * ["allreduce.noname.1"]


def test_a_group_of_several_types_is_asked_for_by_type_and_waited_for_as_one(world: World) -> None:
    world.communicator.at_once = False
    group = [torch.ones(1), torch.ones(2, dtype=torch.float64), torch.ones(3)]
    handle = world.call("grouped_allreduce", group, group, 1, b"g", 1, 1.0, 1.0, 0)
    first, second = world.communicator.asked
    assert [len(work.inputs) for work in (first, second)] == [2, 1]
    assert world.communicator.names() == [
        "grouped_allreduce.g.torch.float32",
        "grouped_allreduce.g.torch.float64",
    ]
    world.communicator.finish(first)
    assert world.lib.horovod_torch_poll(handle) == 0
    world.communicator.finish(second, RuntimeError("gone"))
    assert world.lib.horovod_torch_poll(handle) == 1
    with pytest.raises(RuntimeError, match="gone"):
        world.lib.horovod_torch_wait_and_clear(handle)
    assert world.communicator.waited_for == world.communicator.names()


def test_a_tensor_with_gradients_is_written_in_its_own_memory(world: World) -> None:
    weight = torch.ones(2, requires_grad=True)
    world.allreduce(weight, b"weight")
    (work,) = world.communicator.asked
    work.outputs[0].mul_(3)
    assert work.inputs[0] is work.outputs[0]
    assert weight.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("kind", "result"), [(torch.float32, 2.5), (torch.int64, 2)])
def test_a_divisor_divides_what_came_out(world: World, kind: Any, result: float) -> None:
    output = torch.tensor([5], dtype=kind)
    handle = world.call("allreduce", torch.ones(1, dtype=kind), output, 2, b"x", 1, 1.0, 1.0, 0)
    world.lib.horovod_torch_wait_and_clear(handle)
    assert output.tolist() == [result]


# --- splits, joins ------------------------------------------------------------------------------------------


def test_of_an_alltoall_only_what_is_split_is_sent(world: World) -> None:
    world.alltoall(torch.arange(10), [1, 0, 3])
    (work,) = world.communicator.asked
    assert work.inputs[0].tolist() == [0, 1, 2, 3]
    assert (work.request.shapes, work.request.splits) == (((4,),), (1, 0, 3))


@pytest.mark.parametrize(
    ("rows", "splits", "options", "words"),
    [
        (10, [], {}, "first dimension of the tensor, 10, is not an even multiple of .* workers, 3"),
        (9, [3, 3], {}, "2 entries in splits, but 3 workers"),
        (9, [3, 3, 4], {}, "Sum of splits entries, 10, is greater than the first dimension of tensor, 9"),
        (9, [5, 5, -1], {}, "must not be negative"),
        (9, [3, 3, 3], {"dtype": torch.int64}, "32-bit integer"),
        (9, [[3, 3, 3]], {}, "1D"),
    ],
)
def test_splits_that_cannot_be_meant_are_the_callers_error(
    world: World, rows: int, splits: list[int], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        world.alltoall(torch.arange(rows), splits, **options)
    assert world.communicator.asked == []


def test_received_splits_arrive_where_horovod_wants_them(world: World) -> None:
    world.communicator.at_once = False
    received = torch.empty(7, dtype=torch.int64)
    none = torch.tensor([], dtype=torch.int32)
    handle = world.call("alltoall", torch.arange(3), none, torch.empty(0), received, b"x", 0)
    (work,) = world.communicator.asked
    assert work.received_splits is not None
    work.received_splits.resize_(3).copy_(torch.tensor([4, 5, 6]))
    work.finish()
    world.lib.horovod_torch_wait_and_clear(handle)
    assert received.tolist() == [4, 5, 6]


def test_join_says_who_joined_last(world: World) -> None:
    world.communicator.result = 2
    output = torch.tensor(-1, dtype=torch.int)
    world.lib.horovod_torch_wait_and_clear(world.lib.horovod_torch_join(output, -1))
    assert output.item() == 2
    assert world.communicator.requests() == [Request(Operation.JOIN, "join")]


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda world: world.allreduce(torch.ones(1), op=2), "no hvd.Adasum; flexo run --core=horovod has"),
        (lambda world: world.allreduce(torch.ones(1), process_set=7), "does not exist"),
        (lambda world: world.allreduce(torch.ones(1), process_set=None), "does not exist"),
        (lambda world: world.allreduce(torch.ones(1), process_set=4), "Rank 1 is not a member"),
        (lambda world: world.lib.horovod_torch_barrier(4), "Barrier: Rank 1 is not a member"),
        (
            lambda world: world.call("broadcast", torch.ones(1), torch.ones(1), 3, b"x", 0),
            "invalid root rank 3 for provided process set",
        ),
        (
            lambda world: world.call("broadcast", torch.ones(1), torch.ones(1), 0, b"x", 5),
            "invalid root rank 0 for provided process set",
        ),
        (lambda world: world.call("allgather", torch.tensor(1), torch.empty(0), b"x", 0), "scalar"),
        (
            lambda world: world.call("reducescatter", torch.ones(3), torch.empty(0), b"x", 3, 0, 1.0, 1.0),
            "can only average and sum",
        ),
    ],
)
def test_what_no_communicator_could_do_is_the_callers_error(
    world: World, call: Callable[[World], int], words: str
) -> None:
    """Not a RuntimeError, from which Horovod's elastic loop would recover for ever."""
    world.communicator.sets.update({4: (0, 2), 5: (1, 2)})
    with pytest.raises(ValueError, match=words):
        call(world)
    assert world.communicator.asked == []


def test_without_a_communicator_nothing_is_asked_for(world: World) -> None:
    world.layer.communicator = None
    with pytest.raises(RuntimeError, match="not been initialized"):
        world.allreduce(torch.ones(1))
    assert [world.library.horovod_rank(), world.library.horovod_size()] == [-1, -1]


# --- handles ------------------------------------------------------------------------------------------------


def test_a_handle_is_valid_until_it_is_waited_for(world: World) -> None:
    first, second = (world.allreduce(torch.ones(1)) for _ in range(2))
    assert first < second
    world.lib.horovod_torch_wait_and_clear(first)
    for use in (world.lib.horovod_torch_poll, world.lib.horovod_torch_wait_and_clear):
        with pytest.raises(ValueError, match=rf"Handle {first}\b"):
            use(first)
    assert world.lib.horovod_torch_poll(second) == 1


def test_handles_of_one_communicator_mean_nothing_to_the_next(world: World) -> None:
    handle = world.allreduce(torch.ones(1))
    world.layer.communicator = Communicator(replace(FIRST, generation=2))
    assert world.allreduce(torch.ones(1)) != handle
    with pytest.raises(ValueError, match=rf"Handle {handle}\b"):
        world.lib.horovod_torch_poll(handle)


# --- the library that HorovodBasics opens -------------------------------------------------------------------


def ints(*numbers: int) -> Any:
    return (ctypes.c_int * len(numbers))(*numbers)


def init(world: World, *sets: tuple[int, ...]) -> bool:
    """As HorovodBasics.init calls it."""
    ranks = ints(*(rank for each in sets for rank in each))
    sizes = ints(*map(len, sets))
    up: bool = world.library.horovod_init(ints(), ctypes.c_int(0), ranks, sizes, ctypes.c_int(len(sets)))
    return up


def test_the_library_knows_the_place(world: World) -> None:
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    assert [getattr(world.library, f"horovod_{name}")() for name in names] == [1, 3, 0, 1, 1, 3]


def test_process_sets_are_added_and_removed_together_with_all_ranks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = world.library
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS", raising=False)
    assert library.horovod_add_process_set(ints(0, 1), ctypes.c_int(2)) == -2
    assert library.horovod_remove_process_set(ctypes.c_int(1)) == -2
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    number = library.horovod_add_process_set(ints(2, 1), ctypes.c_int(2))
    assert world.communicator.requests() == [
        Request(Operation.ADD_PROCESS_SET, "add_process_set.1,2", members=(1, 2))
    ]
    assert library.horovod_add_process_set(ints(1, 2), ctypes.c_int(2)) == -6
    assert library.horovod_add_process_set(ints(0, 1, 2), ctypes.c_int(3)) == -6
    assert library.horovod_remove_process_set(ctypes.c_int(number + 1)) == -3
    assert library.horovod_remove_process_set(ctypes.c_int(number)) == number
    assert world.communicator.sets == {0: (0, 1, 2)}
    with pytest.raises(ValueError, match=r"ranks \[1, 3\].*\b3 ranks\b"):
        library.horovod_add_process_set(ints(1, 3), ctypes.c_int(2))


def test_a_process_set_can_be_looked_at(world: World) -> None:
    library = world.library
    world.communicator.sets.update({4: (0, 2), 5: (1, 2)})
    ids, ranks = ints(9, 9, 9), ints(9, 9)
    assert library.horovod_number_of_process_sets() == 3
    library.horovod_process_set_ids(ids)
    assert library.horovod_process_set_ranks(ctypes.c_int(5), ranks) == 0
    assert (list(ids), list(ranks)) == ([0, 4, 5], [1, 2])
    looks = ("rank", "size", "included")
    told = {
        number: [getattr(library, f"horovod_process_set_{look}")(ctypes.c_int(number)) for look in looks]
        for number in (0, 4, 5, 6)
    }
    assert told == {0: [1, 3, 1], 4: [-4, 2, 0], 5: [0, 2, 1], 6: [-3, -3, -3]}


def test_after_a_shutdown_init_begins_anew_in_the_same_place(world: World) -> None:
    world.communicator.sets[4] = (0, 1)
    world.library.horovod_shutdown()
    assert world.library.horovod_is_initialized() == 0
    assert world.library.horovod_rank() == -1
    with pytest.raises(RuntimeError, match="not been initialized"):
        world.allreduce(torch.ones(1))
    assert init(world, (1, 2), (0,))
    assert world.library.horovod_rank() == 1
    assert sorted(world.communicator.sets.values()) == [(0,), (0, 1, 2), (1, 2)]


def test_a_second_init_changes_nothing(world: World) -> None:
    world.communicator.sets[4] = (0, 1)
    assert init(world, (1, 2))
    assert world.communicator.asked == []


def test_init_without_anybody_to_train_with_fails_and_says_why(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.layer.communicator = None
    assert not init(world)
    assert says(capsys.readouterr().err, "not started", "flexo run")


def test_the_next_generation_undoes_a_shutdown(world: World) -> None:
    world.library.horovod_shutdown()
    world.layer.communicator = Communicator(replace(FIRST, generation=2, rank=2))
    assert world.library.horovod_rank() == 2


def test_functions_take_ctypes_attributes_and_unknown_ones_are_named(world: World) -> None:
    world.library.horovod_rank.restype = ctypes.c_int
    assert world.library.horovod_rank() == 1
    with pytest.raises(AttributeError, match="horovod_comm_process_set"):
        _ = world.library.horovod_comm_process_set


# --- Horovod's own Python on top ----------------------------------------------------------------------------

SCRIPT = """
import os, sys
from horovod_elastic import patching
from horovod_elastic.core import python_layer
from horovod_elastic.core.c10d import standin

standin.install()
patching.after_import({"horovod.common.process_sets": lambda: python_layer.patch_process_sets})
assert "torch" not in sys.modules

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops
from horovod_elastic.core.c10d.requests import Operation
from horovod_elastic.core.interface import RankPlacement


class Communicator:
    def __init__(self, generation):
        self.place = RankPlacement(generation, 0, 1, 0, 1, 0, 1, "n1", "", 0)
        self.sets = {0: (0,)}
        self.names = []

    def submit(self, work):
        self.names.append(work.request.name)
        if work.request.operation is Operation.ADD_PROCESS_SET:
            work.result = len(self.sets)
            self.sets[work.result] = work.request.members
        for given, output in zip(work.inputs, work.outputs):
            if output is not given:
                output.resize_(given.shape).copy_(given)
        if work.received_splits is not None:
            work.received_splits.resize_(1).copy_(torch.tensor(work.request.splits))
        work.finish()

    def wait(self, work):
        work.wait()

    def poll(self, work):
        return True

    def process_sets(self):
        return self.sets


def begin(generation):
    communicator = standin.the_layer().communicator = Communicator(generation)
    python_layer.begin(mpi_ops)
    return communicator


communicator = begin(1)
hvd.init()
assert (hvd.rank(), hvd.size(), hvd.is_initialized(), hvd.mpi_built()) == (0, 1, True, False)
assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [1, 1, 1]
assert hvd.broadcast_object({"a": [1]}, root_rank=0) == {"a": [1]}
assert hvd.allgather_object("b") == ["b"]
output, received = hvd.alltoall(torch.arange(4), splits=[3])
assert (output.tolist(), received.tolist()) == ([0, 1, 2], [3])

os.environ["HOROVOD_ELASTIC"] = "1"
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
before = model.weight.tolist()
model(torch.ones(4, 3)).sum().backward()
optimizer.step()
assert model.weight.tolist() != before
assert {"allreduce.weight", "allreduce.bias"} <= set(communicator.names), communicator.names

try:
    hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0]))
except ValueError as error:
    assert "does not exist" in str(error)
else:
    raise AssertionError("a process set that was never added was used")

hvd.shutdown()
assert not hvd.is_initialized()
communicator.sets[0] = (0, 1)  # so that there can be another set
of_init = hvd.ProcessSet([0])
hvd.init(process_sets=[of_init])
assert of_init.process_set_id == 1
begin(2)
assert of_init.process_set_id is None
assert hvd.global_process_set.process_set_id == 0
assert hvd.global_process_set.ranks == [0]

with open("/proc/self/maps") as maps:
    assert "mpi_lib_v2" not in maps.read(), "Horovod's native library was loaded"
print(hvd.__file__)
"""


@pytest.fixture(params=["with its native library", "with Python files only"])
def horovod(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the installed Horovod, or with what of it is Python."""
    spec = find_spec("horovod")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (installed,) = spec.submodule_search_locations
    left_out = ("*.so", "metadata.json") if "only" in request.param else ()
    shutil.copytree(
        installed, tmp_path / "horovod", ignore=shutil.ignore_patterns("__pycache__", "spark", *left_out)
    )
    return tmp_path


@pytest.mark.thorough
def test_horovods_python_layer_works_on_the_stand_ins(horovod: Path) -> None:
    script = horovod / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.split()[-1]).is_relative_to(horovod)
    assert "Extension" not in done.stdout


WORKER = """
import horovod.torch as hvd
import torch
from horovod_elastic.worker import session as sessions

session = sessions.current()
session.connect = lambda: None
session.found = lambda: session.core.alone()
hvd.init()
print(type(session.core).__name__, hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist(), hvd.__file__)
"""


@pytest.mark.processes
def test_a_worker_of_a_job_that_chose_it_trains_with_this_core(horovod: Path) -> None:
    script = horovod / "script.py"
    script.write_text(WORKER)
    environment = {
        **os.environ,
        "PYTHONPATH": str(INJECT),
        choice.VARIABLE: choice.TORCH,
        **{"FLEXO_AGENT": "nobody", "FLEXO_WORKER_ID": "1", "FLEXO_WORKER_SECRET": "none"},
    }
    command = [sys.executable, script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"TorchCore [1.0, 1.0] {horovod}/horovod/torch/__init__.py\n"
