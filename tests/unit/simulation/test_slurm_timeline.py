"""Windows of free GPUs, as Slurm's backfill plans with them."""

from __future__ import annotations

import math

from little_simulations import ONE_GPU

from flexo.clusters.simulated.nodes import NodeGroup, make_nodes
from flexo.model.training import NodeShare
from flexo_simulation.on_slurm.timeline import Ask, Release, Timeline

NODES = make_nodes((NodeGroup(2, 4),))
ONE, TWO = (node.name for node in NODES)


def ask(workers: int, limit_s: float = 100.0) -> Ask:
    return Ask(ONE_GPU, workers, limit_s)


def timeline(free: tuple[int, int], *releases: Release) -> Timeline:
    return Timeline(NODES, dict(zip((ONE, TWO), free, strict=True)), releases, now=10.0)


def test_what_fits_now_fits_now() -> None:
    assert timeline((4, 1)).first_window(ask(2)) == (10.0, (NodeShare(ONE, 2),))


def test_a_job_fits_once_enough_has_been_released() -> None:
    line = timeline((1, 0), Release(50.0, ONE, 1), Release(80.0, TWO, 4))
    assert line.first_window(ask(2)) == (50.0, (NodeShare(ONE, 2),))
    window = line.first_window(ask(5))
    assert window is not None
    assert window[0] == 80.0


def test_what_never_fits_has_no_window() -> None:
    assert timeline((1, 1)).first_window(ask(3)) is None


def test_a_gap_before_a_reservation_takes_only_who_has_gone_by_then() -> None:
    line = timeline((2, 0), Release(60.0, ONE, 2))
    at, shares = line.first_window(ask(4)) or (0.0, ())
    line.take(ask(4), at, shares)
    assert line.first_window(ask(1, 50.0)) == (10.0, (NodeShare(ONE, 1),))
    late = line.first_window(ask(1, 51.0))
    assert late is not None
    assert late[0] == 160.0


def test_a_job_without_a_limit_keeps_what_it_takes() -> None:
    line = timeline((4, 0))
    line.take(ask(4, math.inf), 10.0, (NodeShare(ONE, 4),))
    assert line.first_window(ask(1)) is None
    assert line.free(ONE, 1000.0) == 0


def test_a_place_beside_what_is_held_besides() -> None:
    line = timeline((4, 3))
    assert line.place_now(ask(3), {ONE: 2}) == (NodeShare(TWO, 3),)
    assert line.place_now(ask(4), {ONE: 4}) is None
