"""Times the core on torch.distributed: how fast it connects n ranks, idle or training, and broadcasts.

All ranks are processes on the loopback of one machine, and share its cores. So much of the growth with the
number of ranks comes from sharing the machine. Run it as `python -m flexo_bench.connecting`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence

from flexo_bench import rendezvous
from flexo_bench.ranks import Cluster, Me, each
from flexo_bench.rendezvous import Change, Prepared
from flexo_bench.runtime.results import MODELS, Broadcast, Connected, Connecting
from horovod_elastic.core.choice import TORCH
from horovod_elastic.core.interface import RankPlacement

RANKS = (2, 4, 8, 16, 32)
BEYOND = 64
"""Number of ranks for which the time is extrapolated, not measured."""
STEPS = 20
BROADCASTS = 9


def measure(sizes: Sequence[int], repeats: int, broadcast_among: int) -> Connecting:
    """Run all measurements. Raises a rank's error."""
    connected = tuple(_at(size, repeats) for size in sizes)
    return Connecting(rendezvous.STEP_S, connected, _broadcasts(broadcast_among))


def _at(size: int, repeats: int) -> Connected:
    idle = rendezvous.changes(TORCH, size, repeats, _prepare_idle)
    busy = rendezvous.changes(TORCH, size, repeats, _train_prepare_and_train)
    usual, meanwhile = _steps(busy)
    return Connected(
        size,
        tuple(change.prepared for change in idle),
        tuple(change.prepared for change in busy),
        tuple(change.switched for change in busy),
        tuple(change.first_collective for change in busy),
        usual,
        meanwhile,
    )


def _steps(found: Sequence[Change]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Durations of steps before a preparation began, and during it."""
    usual = tuple(step for change in found for step in change.steps[:STEPS])
    return usual, tuple(step for change in found for step in change.steps[STEPS:])


def _prepare_idle(me: Me, place: RankPlacement) -> Prepared:
    me.prepare(place)
    if why := me.prepared():
        raise RuntimeError(why)
    return Prepared(me.built_at)


def _train_prepare_and_train(me: Me, place: RankPlacement) -> Prepared:
    """Train STEPS steps, then prepare while training. The preparation's time counts from its own begin."""
    usual = tuple(rendezvous.step_seconds(me) for _ in range(STEPS if me.hvd.is_initialized() else 0))
    began = time.time()
    found = rendezvous.prepare_and_train(me, place)
    return Prepared(found.built_at, (*usual, *found.steps), began)


# --- the broadcast ---------------------------------------------------------------------------------------


def _broadcasts(ranks: int) -> tuple[Broadcast, ...]:
    cluster = Cluster(TORCH)
    try:
        cluster.form(cluster.start(ranks))
        return tuple(_broadcast(cluster, model) for model in MODELS)
    finally:
        cluster.close()


def _broadcast(cluster: Cluster, model: str) -> Broadcast:
    told = each(cluster.all, _broadcast_parameters, model)
    slowest = tuple(max(seconds) for seconds in zip(*(seconds for _, seconds in told), strict=True))
    return Broadcast(model, len(cluster.all), told[0][0], slowest[1:])


def _broadcast_parameters(me: Me, model: str) -> tuple[int, list[float]]:
    """Broadcast all parameters repeatedly. Returns their bytes, and the seconds of each broadcast."""
    from flexo_bench.runtime.workload import make_model

    whole = me.torch.cat([parameter.detach().flatten() for parameter in make_model(model).parameters()])
    seconds = []
    for _ in range(BROADCASTS + 1):  # the first broadcast touches the memory
        me.hvd.barrier()
        began = time.perf_counter()
        me.hvd.broadcast_(whole, root_rank=0, name="parameters")
        seconds.append(time.perf_counter() - began)
    return whole.numel() * whole.element_size(), seconds


# --- as a table ------------------------------------------------------------------------------------------


def lines(found: Connecting) -> Iterator[str]:
    """Lines of the table: medians and ranges in milliseconds."""
    titles = ("nobody trains", "all train on", "switch", "to a barrier", "steps before", "steps meanwhile")
    yield "ranks" + "".join(f"{title:>20}" for title in titles)
    for size in found.connected:
        columns = (size.idle, size.training, size.switched, size.first_collective, size.steps, size.meanwhile)
        yield f"{size.ranks:5d}" + "".join(f"{_range(column):>20}" for column in columns)
    if (expected := found.extrapolated_s(BEYOND)) is not None:
        first, second = found.connected[-2:]
        yield (
            f"{BEYOND} ranks, not measured: {1e3 * expected:.0f} ms if all train on and it goes on as from "
            f"{first.ranks} to {second.ranks}"
        )
    for each_ in found.broadcasts:
        yield (
            f"one broadcast of {each_.bytes / 1e6:.1f} MB ({each_.model} model) among {each_.ranks} ranks: "
            f"{_range(each_.seconds)} ms"
        )


def _range(seconds: Sequence[float]) -> str:
    return rendezvous.milliseconds(seconds) if seconds else "-"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m flexo_bench.connecting", description=__doc__)
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), help="with commas (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found = measure([int(size) for size in options.ranks.split(",")], options.repeats, 3)
    print(f"{os.cpu_count()} cores, medians and ranges in ms")
    for line in lines(found):
        print(line)


if __name__ == "__main__":
    main()
