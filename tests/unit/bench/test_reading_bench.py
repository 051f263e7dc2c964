"""The benchmark of the two readers of Slurm: its nodes, its comparison of content, and its figures."""

from __future__ import annotations

from dataclasses import replace

from flat_records import make_node

from flexo.model.nodes import Partition
from flexo_bench.reading.cluster import MODELS, batches
from flexo_bench.reading.content import Look, Place, by_field, differences, lasting
from flexo_bench.reading.figures import middle, quartile, ratio

NODE = make_node("n1", 4, 0, 8, 0, 4000, 0, frozenset({"train"}), "a100", frozenset())
TRAIN = Partition("train", 1, frozenset({"n1"}))
LOOK = Look((), (NODE, replace(NODE, name="n2")), (TRAIN,))


def test_every_node_is_of_one_model() -> None:
    for nodes in (300, 333, 5000):
        found = batches(nodes)
        assert [batch.model for batch in found] == list(MODELS)
        numbers = [number for batch in found for number in range(batch.first, batch.last + 1)]
        assert numbers == list(range(1, nodes + 1))


def test_two_looks_that_show_the_same_in_another_order_do_not_differ() -> None:
    assert differences(LOOK, replace(LOOK, nodes=LOOK.nodes[::-1])) == {}


def test_a_field_that_differs_and_an_object_that_one_look_lacks_are_told() -> None:
    other = Look((), (replace(NODE, unusable="DOWN"),), (replace(TRAIN, up=False),))
    found = differences(LOOK, other)
    assert set(found) == {
        Place("node", "n1", "unusable"),
        Place("node", "n2", ""),
        Place("partition", "train", "up"),
    }
    assert found[Place("node", "n2", "")] == ("there", "missing")
    assert found[Place("partition", "train", "up")] == ("True", "False")


def test_a_node_that_comes_twice_is_told() -> None:
    twice = replace(LOOK, nodes=(*LOOK.nodes, NODE))
    assert len(differences(LOOK, twice)) == 1


def test_only_what_differs_in_every_round_lasts() -> None:
    moved = differences(LOOK, replace(LOOK, nodes=(replace(NODE, unusable="DOWN"), LOOK.nodes[1])))
    both = differences(LOOK, replace(LOOK, nodes=(replace(NODE, unusable="DOWN"),)))
    assert set(lasting([both, moved])) == {Place("node", "n1", "unusable")}
    assert lasting([both, {}]) == lasting([]) == {}
    assert {each.title: each.count for each in by_field(both)} == {"node.unusable": 1, "node (whole)": 1}
    (shown,) = by_field(moved)
    assert [(each.name, each.one, each.other) for each in shown.examples] == [("n1", "''", "'DOWN'")]


def test_a_median_stands_within_its_interval_which_more_scatter_widens() -> None:
    close, wide = middle([1.0, 1.1, 1.2, 1.1, 1.0]), middle([0.1, 1.1, 9.0, 1.1, 5.0])
    assert close.low <= close.value == 1.1 <= close.high
    assert wide.high - wide.low > close.high - close.low
    assert ratio([2.0, 4.0], [1.0, 2.0]).value == 2.0


def test_slurmctlds_own_work_in_half_of_the_looks_does_not_move_the_first_quartile() -> None:
    quiet = [0.028, 0.03, 0.031, 0.03, 0.029, 0.03, 0.032, 0.03]
    found = quartile([*quiet, *(0.6 + value for value in quiet[1:])])
    assert found.low <= found.value <= 0.032 < middle([*quiet, *(0.6 + value for value in quiet)]).value
