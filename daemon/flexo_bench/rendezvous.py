"""Times the connection of n ranks: flexo on Horovod's core beside stock Horovod, in one run.

Stock ranks shut down and initialise again against Horovod's own elastic rendezvous server, and do nothing
else meanwhile. Our ranks prepare a second communicator against our rendezvous while they train on (an
all-reduce and a step that sleeps, in turns), and then switch. Both are laid out as one host's n local ranks.
The same native core connects both. A time ends when the last rank is done.
Run it as `python -m flexo_bench.rendezvous`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flexo_bench import ranks
from flexo_bench.ranks import Me, Rank, each
from horovod_elastic.core.choice import HOROVOD
from horovod_elastic.core.interface import RankPlacement
from horovod_elastic.rendezvous import Rendezvous

HOST = "bench"
STEP_S = 0.05
"""Duration of a step that sleeps in place of a GPU's work, for which a machine has too few cores."""


@dataclass(frozen=True, slots=True)
class Size:
    """Times in seconds at one number of ranks, one time for each repetition."""

    ranks: int
    stock: tuple[float, ...]
    """Time from the command until the last rank has shut down and initialised again. No rank trains."""
    prepared: tuple[float, ...]
    """Time from the command until the last rank has built the next communicator. All ranks train."""
    switched: tuple[float, ...]
    """The slowest rank's time for the switch itself."""
    first_collective: tuple[float, ...]
    """Time from the begin of the switch until the slowest rank has passed a barrier in the new one."""


@dataclass(frozen=True, slots=True)
class Found:
    """The results of `measure`."""

    step_s: float
    sizes: tuple[Size, ...]


def measure(sizes: Sequence[int], repeats: int) -> Found:
    """Measure both at each number of ranks. Raises a rank's error."""
    return Found(STEP_S, tuple(_at(size, repeats) for size in sizes))


def lines(found: Found) -> Iterator[str]:
    """Lines of the table: medians and ranges in milliseconds."""
    titles = ("stock Horovod", "flexo, training on", "switch", "to a barrier")
    yield "ranks" + "".join(f"{title:>22}" for title in titles)
    for size in found.sizes:
        columns = (size.stock, size.prepared, size.switched, size.first_collective)
        yield f"{size.ranks:5d}" + "".join(f"{milliseconds(column):>22}" for column in columns)


def milliseconds(seconds: Sequence[float]) -> str:
    """A text in milliseconds: median (least-most)."""
    middle, low, high = (1e3 * value for value in (statistics.median(seconds), min(seconds), max(seconds)))
    digits = 2 if middle < 10 else 0
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _at(size: int, repeats: int) -> Size:
    stock = _stock(size, repeats)
    found = changes(HOROVOD, size, repeats, prepare_and_train)
    return Size(
        size, stock,
        tuple(change.prepared for change in found),
        tuple(change.switched for change in found),
        tuple(change.first_collective for change in found),
    )  # fmt: skip


# --- stock ------------------------------------------------------------------------------------------------


def _stock(size: int, repeats: int) -> tuple[float, ...]:
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.elastic.rendezvous import create_rendezvous_handler
    from horovod.runner.http.http_server import RendezvousServer

    plan = [SlotInfo(HOST, rank, rank, 0, size, size, 1) for rank in range(size)]

    class Driver:
        """The part of Horovod's driver that its handler asks, without its wait for all workers."""

        def record_ready(self, host: str, local_rank: int) -> None:
            pass

        def get_slot_info(self, host: str, local_rank: int) -> Any:
            return plan[local_rank]

    server = RendezvousServer()
    port = server.start(create_rendezvous_handler(Driver()))
    members = [Rank(f"stock{rank}", _variables(rank, size, port), None) for rank in range(size)]
    took = []
    try:
        for _ in range(repeats + 1):  # the first one has nothing to shut down
            server.init(plan)
            began = time.time()
            took.append(max(each(members, _again)) - began)
        each(members, _shut_down)  # otherwise, when one is killed, the others print errors
    finally:
        _kill(members)
        server.stop()
    return tuple(took[1:])


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": HOST,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": ranks.LOOPBACK,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def _again(me: Me) -> float:
    """Do Horovod's own reset. Returns the time (time.time) at its end."""
    me.hvd.shutdown()
    me.hvd.init()
    return time.time()


def _shut_down(me: Me) -> None:
    me.hvd.shutdown()


# --- ours -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """One rank's report on a preparation."""

    built_at: float
    """Time (time.time) at which the communicator was built."""
    steps: tuple[float, ...] = ()
    """Durations in seconds of the steps that the rank trained."""
    began_at: float = 0.0
    """Time at which the rank began to prepare, if that was later than the command; else 0."""


@dataclass(frozen=True, slots=True)
class Change:
    """One more communicator, measured over all ranks. Times are in seconds."""

    prepared: float
    """Time from the command to all ranks until the last one had built the communicator."""
    switched: float
    first_collective: float
    steps: tuple[float, ...]
    """Durations of rank 0's steps."""


def changes(
    core: str, size: int, repeats: int, prepare: Callable[[Me, RankPlacement], Prepared]
) -> list[Change]:
    """Run `prepare` at all ranks and a switch, `repeats` times.

    An additional first time is left out, because no rank trains yet.
    """
    members = [Rank(f"{core}{rank}", {}, core) for rank in range(size)]
    try:
        found = [_change(members, generation, prepare) for generation in range(1, repeats + 2)]
        each(members, ranks.leave)
    finally:
        _kill(members)
    return found[1:]


def _change(
    members: Sequence[Rank], generation: int, prepare: Callable[[Me, RankPlacement], Prepared]
) -> Change:
    size = len(members)
    lines = {f"{HOST}:{rank}": f"{rank},{size},{rank},{size},0,1" for rank in range(size)}
    server = Rendezvous(ranks.LOOPBACK, lines, "secret")
    began = time.time()
    for rank, member in enumerate(members):
        place = RankPlacement(generation, rank, size, rank, size, 0, 1, HOST, server.address, server.port)
        member.begin(prepare, place)
    told: list[Prepared] = [member.answer() for member in members]
    server.close()
    switches = each(members, _switch, generation)
    switched, first_collective = (max(values) for values in zip(*switches, strict=True))
    began = max(began, *(rank.began_at for rank in told))
    return Change(max(rank.built_at for rank in told) - began, switched, first_collective, told[0].steps)


def prepare_and_train(me: Me, place: RankPlacement) -> Prepared:
    """Prepare a communicator while training on. Returns when all ranks have built theirs."""
    me.prepare(place)
    builder = me.builder
    assert builder is not None
    steps = []
    if not me.hvd.is_initialized():
        builder.join()
    else:
        all_built = False
        while not all_built:
            began = time.perf_counter()
            all_built = _step(me, not builder.is_alive())
            steps.append(time.perf_counter() - began)
    if why := me.prepared():
        raise RuntimeError(why)
    return Prepared(me.built_at, tuple(steps))


def step_seconds(me: Me) -> float:
    """The duration of one step."""
    began = time.perf_counter()
    _step(me, False)
    return time.perf_counter() - began


def _step(me: Me, built: bool) -> bool:
    """One step: a sleep as the GPU's work, and an all-reduce. Returns True if all ranks have built theirs."""
    time.sleep(STEP_S)
    return bool(me.hvd.allreduce(me.torch.tensor([float(built)]), op=me.hvd.Min, name="step").item())


def _switch(me: Me, generation: int) -> tuple[float, float]:
    """Switch. Returns the seconds of the switch, and those until a barrier after it."""
    began = time.perf_counter()
    took = ranks.switch(me, generation)
    me.hvd.barrier()
    return took, time.perf_counter() - began


def _kill(members: Sequence[Rank]) -> None:
    for member in members:
        member.kill()


def main() -> None:
    """Print the table; write JSON if asked to."""
    parser = argparse.ArgumentParser(prog="python -m flexo_bench.rendezvous", description=__doc__)
    parser.add_argument("--ranks", default="2,4,8,16", help="with commas between them (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    found = measure([int(size) for size in options.ranks.split(",")], options.repeats)
    print(f"{os.cpu_count()} cores, medians and ranges of {options.repeats} in ms")
    for line in lines(found):
        print(line)
    if options.json:
        options.json.write_text(json.dumps(asdict(found), indent=2) + "\n")


if __name__ == "__main__":
    main()
