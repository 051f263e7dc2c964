"""Placing workers on the sheet of free GPUs: few nodes, tight fits, nothing lost, nothing taken twice."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from training_jobs import ONE_GPU, job, node, snapshot

from flexo.model.training import NodeShare
from flexo.policies.placement import FreeGpus, Placement, shares_to_keep
from flexo_protos.resources import Resources

TWO_GPUS = Resources(gpus=2, cpus=1)


def sheet(*gpus: int, **changes) -> FreeGpus:
    """Nodes n0, n1, ... with so many free GPUs."""
    return FreeGpus([node(f"n{index}", count, **changes) for index, count in enumerate(gpus)])


def test_a_job_goes_to_the_one_node_that_holds_it_with_the_least_left_over():
    assert sheet(8, 3, 4, 3).place(ONE_GPU, 3) == (NodeShare("n1", 3),)


def test_a_job_too_large_for_one_node_goes_to_few_and_its_last_part_where_it_fits_best():
    assert sheet(2, 8, 8, 3).place(ONE_GPU, 10) == (NodeShare("n0", 2), NodeShare("n1", 8))


def test_the_last_part_may_go_to_another_of_the_fullest_nodes():
    assert sheet(4, 4, 4).place(ONE_GPU, 10) == (
        NodeShare("n0", 4),
        NodeShare("n1", 4),
        NodeShare("n2", 2),
    )


def test_workers_are_never_split_over_nodes():
    free = sheet(3, 3)
    assert free.workers(TWO_GPUS) == 2
    assert free.place(TWO_GPUS, 2) == (NodeShare("n0", 1), NodeShare("n1", 1))
    assert free.place(TWO_GPUS, 3) is None


def test_what_is_kept_stays_and_more_goes_beside_it():
    free = sheet(8, 4, 4)
    assert free.place(ONE_GPU, 3, keep=(NodeShare("n1", 2),)) == (NodeShare("n1", 3),)
    assert free.place(ONE_GPU, 6, keep=(NodeShare("n1", 2),)) == (
        NodeShare("n1", 4),
        NodeShare("n2", 2),
    )


def test_of_what_is_kept_the_first_counts_first():
    assert sheet(8, 4).place(ONE_GPU, 2, keep=(NodeShare("n1", 2), NodeShare("n0", 4))) == (
        NodeShare("n1", 2),
    )


def test_what_does_not_fit_any_more_is_not_kept():
    free = sheet(4, 4)
    free.take(ONE_GPU, (NodeShare("n0", 3),))
    assert free.place(ONE_GPU, 2, keep=(NodeShare("n0", 2),)) == (
        NodeShare("n0", 1),
        NodeShare("n1", 1),
    )


def test_taken_and_given_back_gpus_are_counted():
    free = sheet(4, 4)
    free.take(TWO_GPUS, (NodeShare("n0", 2),))
    assert (free.total, free.of_node("n0"), free.of_node("n1")) == (4, 0, 4)
    free.give(TWO_GPUS, (NodeShare("n0", 1),))
    assert (free.total, free.of_node("n0")) == (6, 2)


def test_the_widest_placement_starts_with_the_node_with_most_free_and_the_first_of_equals():
    assert sheet(3, 4, 4).place_widest(ONE_GPU, 2) == (NodeShare("n1", 2),)
    assert sheet(3, 4, 4).place_widest(ONE_GPU, 9) == (
        NodeShare("n1", 4),
        NodeShare("n2", 4),
        NodeShare("n0", 1),
    )
    assert sheet(1, 1).place_widest(ONE_GPU, 3) is None


def test_a_placement_is_of_one_gpu_type():
    nodes = [node("a", 4, gpu_type="v100"), node("b", 8, gpu_type="t4"), node("c", 2, gpu_type="v100")]
    free = FreeGpus(nodes)
    assert free.workers(ONE_GPU) == 8
    assert free.place(ONE_GPU, 10) is None
    assert free.place(Resources(1, 1, gpu_type="v100"), 6) == (NodeShare("a", 4), NodeShare("c", 2))
    assert free.place(Resources(1, 1, gpu_type="a100"), 1) is None


def test_a_job_keeps_what_it_has_on_an_unusable_node_and_nobody_else_gets_it():
    running = job(1, "1-4", on={"n0": 2})
    nodes = snapshot([node("n0", unusable="DRAIN"), node("n1")], [running]).nodes
    free = Placement(nodes).free([running])
    assert (free.total, free.of_node("n0")) == (4, 0)
    assert free.place(ONE_GPU, 3, keep=running.shares) == (NodeShare("n0", 2), NodeShare("n1", 1))
    assert free.place(ONE_GPU, 5) is None


def test_a_job_that_was_running_may_be_counted_as_free():
    running = job(1, 3, on={"n0": 3})
    placement = Placement(snapshot([node("n0"), node("n1")], [running]).nodes)
    assert placement.free().total == 5
    assert placement.free([running]).total == 8


def test_the_base_is_dearest_then_the_largest_share():
    held = job(1, "1-8", on={"a": 1, "b": 2, "c": 3}, base=(NodeShare("b", 1),))
    assert shares_to_keep(held) == (
        NodeShare("b", 1),
        NodeShare("c", 3),
        NodeShare("a", 1),
        NodeShare("b", 1),
    )


@given(
    gpus=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    each=st.integers(1, 3),
    wanted=st.integers(1, 20),
)
def test_a_placement_uses_as_few_nodes_as_any_could(gpus: list[int], each: int, wanted: int):
    shape = Resources(each, 1)
    placed = sheet(*gpus).place(shape, wanted)
    rooms = [count // each for count in gpus]
    fewest = next(
        (
            size
            for size in range(1, len(rooms) + 1)
            if any(sum(some) >= wanted for some in combinations(rooms, size))
        ),
        None,
    )
    if placed is None:
        assert fewest is None
        return
    assert len(placed) == fewest
    assert sum(share.workers for share in placed) == wanted
    assert all(0 < share.workers <= rooms[int(share.node[1:])] for share in placed)


@given(st.data())
def test_the_sheet_tells_the_same_as_a_new_one_however_often_it_was_changed(data: st.DataObject):
    gpus = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=6))
    free, left = sheet(*gpus), list(gpus)
    for _ in range(data.draw(st.integers(0, 20))):
        index = data.draw(st.integers(0, len(gpus) - 1))
        less = data.draw(st.integers(left[index] - gpus[index], left[index]))
        if less >= 0:
            free.take(ONE_GPU, (NodeShare(f"n{index}", less),))
        else:
            free.give(ONE_GPU, (NodeShare(f"n{index}", -less),))
        left[index] -= less
        wanted = data.draw(st.integers(1, 12))
        shape = data.draw(st.sampled_from([ONE_GPU, TWO_GPUS]))
        assert free.place(shape, wanted) == sheet(*left).place(shape, wanted)
        assert free.place_widest(shape, wanted) == sheet(*left).place_widest(shape, wanted)
        assert free.total == sum(left)
