"""What an Aggregator knows of a key: each round has one result, whoever dies, in whatever order they come."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from threading import Lock
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.aggregation.control import AggregatorUsage
from horovod_elastic.aggregation.key_state import KeyState
from horovod_elastic.aggregation.memory import InputMemory, KeyShape, both, mask_of, ranks_in
from horovod_elastic.aggregation.session import Session

SHAPE = KeyShape("gradients", "float32", 1)
PART_BYTES = 4096


def state(ranks: int, ours: Sequence[int] = ()) -> KeyState:
    made = KeyState(SHAPE, PART_BYTES, ranks)
    for rank in ours:
        made.inputs[rank] = InputMemory(SHAPE)
    return made


def mask(*ranks: int) -> bytes:
    return mask_of(ranks, 4)


# --- how many rounds there were -----------------------------------------------------------------------------


def test_a_round_counts_once_all_parts_have_its_result() -> None:
    made = KeyState(KeyShape("gradients", "float32", 2 * PART_BYTES // 4), PART_BYTES, 4)
    assert len(made.parts) == 2
    seen = []
    for part, number in ((0, 1), (1, 1), (0, 2), (1, 2)):
        made.is_whole(part, number, mask(0, 1))
        seen.append(made.rounds())
    assert seen == [0, 1, 1, 2]


def test_an_iteration_is_not_counted_by_a_model_that_was_sent_once() -> None:
    model, gradients = (
        KeyState(KeyShape(name, "float32", 8), PART_BYTES, 4) for name in ("model", "gradients")
    )
    model.is_whole(0, 1, mask(0, 1))
    for number in range(1, 6):
        gradients.is_whole(0, number, mask(0, 1))
    session = SimpleNamespace(_lock=Lock(), _keys={1: model, 2: gradients}, plan=SimpleNamespace(version=3))
    assert Session.usage(session) == AggregatorUsage(64, 5, 3)


# --- this node's workers ----------------------------------------------------------------------------------


def test_a_round_is_claimed_once_all_that_live_have_pushed_and_once_only() -> None:
    made = state(4, range(4))
    made.pushes(1, 1)
    assert made.node_ready({0, 1}) is None
    made.pushes(0, 1)
    claim = made.node_ready({0, 1})
    assert claim is not None
    assert (claim.number, claim.summands, ranks_in(claim.mask)) == (1, (0, 1), {0, 1})
    made.pushes(0, 1)  # sent again
    assert made.node_ready({0, 1}) is None


def test_what_the_dead_have_pushed_counts_in_its_own_round_only() -> None:
    made = state(4, range(4))
    for rank in (0, 1, 2):
        made.pushes(rank, 1)
    claim = made.node_ready({0, 1})
    assert claim is not None
    assert claim.summands == (0, 1, 2)
    made.pushes(0, 2)
    made.pushes(1, 2)
    claim = made.node_ready({0, 1})
    assert claim is not None
    assert claim.summands == (0, 1)


def test_nothing_is_due_while_those_that_live_are_in_different_rounds() -> None:
    made = state(4, range(4))
    made.pushes(0, 5)
    made.pushes(1, 4)
    assert made.node_ready({0, 1}) is None
    assert made.node_ready(()) is None


def test_a_single_workers_input_is_the_nodes_sum() -> None:
    made = state(4, [2, 3])
    made.pushes(2, 1)
    assert made.node_ready({2}) is not None
    assert made.node_sum(0).ctypes.data == made.inputs[2].numbers.ctypes.data


# --- nodes ------------------------------------------------------------------------------------------------


def test_a_part_is_claimed_once_all_nodes_that_live_have_pushed_the_same_round() -> None:
    made = state(4)
    made.arrives(0, 2, 1, mask(3))
    made.arrives(0, 0, 1, mask(0, 1))
    assert made.claim(0, [0, 1, 2]) is None
    claim = made.claim(0, [0, 2])
    assert claim is not None
    assert (claim.number, claim.summands, claim.mask) == (1, (0, 2), mask(0, 1, 3))
    assert made.claim(0, [0, 2]) is None
    made.is_whole(0, 1, claim.mask)
    assert made.claim(0, [0, 2]) is None
    assert made.done(0) == made.latest(0, 1) == 1


def test_a_sum_that_is_being_made_here_is_not_given_to_another_root() -> None:
    made = state(2)
    made.node_summed(0, 1, mask(0))
    assert made.own_sum(0) == (1, mask(0))
    for node in (0, 1):
        made.arrives(0, node, 1, mask(node))
    assert made.claim(0, [0, 1])
    assert made.own_sum(0) == (0, b""), "there would be two results, if a rank dies now"


def test_room_for_sums_is_made_without_touching_those_that_are_there() -> None:
    made = state(2)
    made.received(0, 1)[:] = 5
    made.is_whole(0, 1, mask(0, 1))
    made.result.numbers[:] = 7
    made.make_room(0, 1)
    assert (made.received(0, 1)[0], made.result.numbers[0]) == (5, 7)


def test_what_a_node_has_is_fetched_and_not_summed_again() -> None:
    made = state(4)
    made.arrives(0, 0, 3, mask(0))
    made.has(0, 1, 3)
    assert made.claim(0, [0]) is None
    assert made.to_fetch(0) == (1, 3)
    assert made.to_fetch(0) is None
    assert made.lost(1) == [0]
    assert made.claim(0, [0]) is not None


def test_nothing_is_summed_into_a_result_that_is_being_received() -> None:
    made = state(4)
    made.arrives(0, 0, 1, mask(0))
    made.writes(0)
    assert made.claim(0, [0]) is None
    made.gives_up(0)
    assert made.claim(0, [0]) is not None
    assert made.is_busy(0)


def test_a_root_knows_who_pushed_and_may_lack_the_result() -> None:
    made = state(4)
    made.arrives(0, 1, 1, mask(1))
    assert made.behind(0) == []
    made.is_whole(0, 1, mask(0, 1))
    assert made.behind(0) == [1]


def test_the_next_state_of_the_same_memory_knows_what_is_done() -> None:
    shape = KeyShape("gradients", "int64", 2000)
    first = KeyState(shape, PART_BYTES, 4)
    assert first.all_done() == 0
    for part in range(4):
        assert first.is_whole(part, 7, mask(1)) == (part == 3)
    first.is_whole(2, 8, mask(2))
    second = KeyState(shape, PART_BYTES, 4, os.dup(first.result.fd))
    assert [second.done(part) for part in range(4)] == [7, 7, 8, 7]
    assert second.result.contributors(2) == mask(2)
    assert second.all_done() == 0
    first.close()
    second.close()


# --- a world without threads: whatever happens in whatever order, all get the same ------------------------


class Node:
    """A node of the world: its state, and what is on its way to it."""

    def __init__(self, index: int, ranks: Sequence[int], world: World) -> None:
        self.index, self.ranks, self.world = index, ranks, world
        self.state = state(world.size, ranks)
        self.gone: set[int] = set()

    def restart(self) -> None:
        fd = os.dup(self.state.result.fd)
        self.state.close()
        self.state = KeyState(SHAPE, PART_BYTES, self.world.size, fd)
        for rank in self.ranks:
            self.state.inputs[rank] = InputMemory(SHAPE)


class World:
    """Nodes whose messages arrive in any order between different pairs. There is one part, and one key."""

    def __init__(self, nodes: int, workers: int, drawn: random.Random) -> None:
        self.size, self.drawn = nodes * workers, drawn
        self.nodes = [Node(at, range(at * workers, (at + 1) * workers), self) for at in range(nodes)]
        self.dead: set[int] = set()
        self.rounds = [0] * self.size
        """Each rank's last push."""
        self.results: dict[int, set[bytes]] = {}
        """The masks of a round's results that ranks that live have got."""
        self.links: dict[tuple[int, int, bool], list[tuple[str, int, bytes]]] = {}
        """What is on its way on a connection: from, to, and whether results come on it."""

    def root(self, node: Node) -> int:
        for at in range(len(self.nodes)):
            if not node.gone.issuperset(self.nodes[at].ranks):
                return at
        return node.index

    def live_nodes(self, node: Node) -> list[int]:
        return [at for at, each in enumerate(self.nodes) if not node.gone.issuperset(each.ranks)]

    def send(self, source: int, to: int, what: str, number: int, content: bytes = b"") -> None:
        link = source, to, what in ("result", "fetch")
        self.links.setdefault(link, []).append((what, number, content))

    # --- what a session does, without its threads

    def tell_root(self, node: Node) -> None:
        root, (number, contributors) = self.root(node), node.state.own_sum(0)
        if root == node.index:
            if number:
                node.state.arrives(0, node.index, number, contributors)
            return
        if node.state.done(0):
            self.send(node.index, root, "have", node.state.done(0))
        if number:
            self.send(node.index, root, "push", number, contributors)

    def look(self, node: Node) -> None:
        claim = node.state.node_ready([rank for rank in node.ranks if rank not in node.gone])
        if claim is not None and node.state.done(0) < claim.number:
            node.state.node_summed(0, claim.number, claim.mask)
            self.tell_root(node)
        if self.root(node) == node.index:
            claim = node.state.claim(0, self.live_nodes(node))
            if claim is not None:
                self.whole(node, claim.number, claim.mask)
            elif (wanted := node.state.to_fetch(0)) is not None:
                self.send(node.index, wanted[0], "fetch", wanted[1])

    def whole(self, node: Node, number: int, contributors: bytes) -> None:
        node.state.is_whole(0, number, contributors)
        if self.root(node) == node.index:
            for other in self.nodes:
                if other is not node:
                    self.send(node.index, other.index, "result", number, contributors)
        if set(node.ranks) - self.dead:
            self.results.setdefault(number, set()).add(contributors)

    def drop(self, node: Node, ranks: Iterable[int]) -> None:
        new = set(ranks) - node.gone
        if not new:
            return
        before = self.root(node)
        node.gone |= new
        for other in self.nodes:
            if other is not node:
                self.send(node.index, other.index, "drop", 0, mask_of(sorted(new), self.size))
            if node.gone.issuperset(other.ranks):
                node.state.lost(other.index)
        if self.root(node) != before:
            self.tell_root(node)
            if self.root(node) == node.index:
                for behind in node.state.behind(0):
                    self.send(
                        node.index, behind, "result", node.state.done(0), node.state.result.contributors(0)
                    )
        self.look(node)

    def deliver(self, source: int, to: int, down: bool) -> None:
        what, number, content = self.links[source, to, down].pop(0)
        node = self.nodes[to]
        if what == "push":
            if number > node.state.latest(0, source):
                node.state.arrives(0, source, number, content)
            elif number == node.state.done(0):
                self.send(to, source, "result", number, node.state.result.contributors(0))
        elif what == "have":
            node.state.has(0, source, number)
        elif what == "fetch":
            if node.state.done(0) == number:
                self.send(to, source, "answer", number, node.state.result.contributors(0))
        elif what == "drop":
            self.drop(node, ranks_in(content))
        elif what in ("result", "answer"):
            expected = source if what == "result" else to
            if self.root(node) == expected and number > node.state.done(0):
                self.whole(node, number, content)
        self.look(node)

    # --- what happens

    def push(self, rank: int) -> None:
        node = next(each for each in self.nodes if rank in each.ranks)
        if node.state.done(0) == self.rounds[rank]:
            self.rounds[rank] += 1
            node.state.pushes(rank, self.rounds[rank])
            self.look(node)

    def die(self, rank: int) -> None:
        self.dead.add(rank)
        node = next(each for each in self.nodes if rank in each.ranks)
        self.drop(node, [rank])

    def restart(self, node: Node) -> None:
        """The node's Aggregator dies with all that is on its way, and the next one is told what is needed."""
        for link in self.links:
            if node.index in link[:2]:
                self.links[link] = []
        node.restart()
        node.gone = {rank for rank in node.ranks if rank in self.dead}
        for other in self.nodes:
            if other is not node:
                other.state.lost(node.index)
                node.gone |= other.gone
                other.gone |= node.gone
        for rank in filter(lambda rank: rank not in self.dead and self.rounds[rank], node.ranks):
            node.state.pushes(rank, self.rounds[rank])
        for other in self.nodes:
            if other is not node and self.root(other) == node.index:
                self.tell_root(other)
            self.look(other)
        if node.state.done(0) and self.root(node) != node.index:
            self.tell_root(node)
        self.look(node)

    def run(self, rounds: int, deaths: int, restarts: int) -> None:
        mortal = list(range(1, self.size))
        self.drawn.shuffle(mortal)
        steps = 0
        while any(self.done(rank) < rounds for rank in range(self.size) if rank not in self.dead):
            steps += 1
            assert steps < 20_000, "it hangs"
            choices: list[tuple[str, object]] = [
                ("push", rank)
                for rank in range(self.size)
                if rank not in self.dead and self.rounds[rank] < rounds
            ]
            choices += 3 * [("deliver", link) for link, waiting in self.links.items() if waiting]
            luck = self.drawn.random()
            if luck < 0.01 and deaths and mortal:
                deaths -= 1
                self.die(mortal.pop())
            elif luck < 0.02 and restarts:
                restarts -= 1
                self.restart(self.drawn.choice(self.nodes))
            elif choices:
                what, which = self.drawn.choice(choices)
                if what == "push":
                    assert isinstance(which, int)
                    self.push(which)
                else:
                    assert isinstance(which, tuple)
                    self.deliver(*which)

    def done(self, rank: int) -> int:
        return next(each for each in self.nodes if rank in each.ranks).state.done(0)

    def close(self) -> None:
        for each in self.nodes:
            each.state.close()


@pytest.mark.parametrize(("deaths", "restarts"), [(0, 0), (2, 0), (5, 0), (0, 5), (3, 3)])
@given(nodes=st.integers(1, 4), workers=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_in_any_order_every_round_has_one_result_with_the_same_contributors(
    deaths: int, restarts: int, nodes: int, workers: int, seed: int
) -> None:
    world = World(nodes, workers, random.Random(seed))
    world.run(12, deaths, restarts)
    assert set(world.results) >= set(range(1, 13))
    for number, masks in world.results.items():
        assert len(masks) == 1, f"round {number} has results of {[sorted(ranks_in(each)) for each in masks]}"
        assert ranks_in(next(iter(masks))) >= set(range(world.size)) - world.dead
    if not deaths:
        assert all(
            ranks_in(each) == set(range(world.size)) for masks in world.results.values() for each in masks
        )
    world.close()


def test_masks_are_united() -> None:
    assert ranks_in(both(mask_of([0, 9], 12), mask_of([9, 11], 12))) == {0, 9, 11}
    assert np.uint8(mask_of([3], 4)[0]) == 8
