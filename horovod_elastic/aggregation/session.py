"""The sums of one generation of one job, at one Aggregator.

Workers of this node push through memory that they share with the Aggregator. Each part of a key has a *root*,
the Aggregator that sums it over all nodes. Sums of a node go to the roots over TCP, results come back.

A root that dies is started again and knows nothing. So nodes that connect to it again say which results they
have, and push again what they lack. A worker whose connection ends is gone: nobody waits for it, and what it
had pushed counts. If all of a node's workers are gone, its parts have the next node as their root.

Aggregators of a pool are nodes without workers. If the plan has any, they are the roots of all parts, in
proportion to their shares. If one is gone, or makes all wait (slow_roots.py), it is left out, and the others
take its place; if all are gone, the nodes do. The job may be assigned others at any time (migration.py).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from horovod_elastic import sockets
from horovod_elastic.aggregation import adding, control, frames
from horovod_elastic.aggregation.control import AggregatorUsage, Assignment
from horovod_elastic.aggregation.doors import UNLIMITED
from horovod_elastic.aggregation.frames import BadFrame, Frame, Kind
from horovod_elastic.aggregation.key_state import Claim, KeyState
from horovod_elastic.aggregation.memory import (
    Array,
    InputMemory,
    KeyShape,
    mask_bytes,
    mask_of,
    ranks_in,
    shape_from_bytes,
    shape_to_bytes,
)
from horovod_elastic.aggregation.meter import JobMeter, ThreadClock, no_turn
from horovod_elastic.aggregation.migration import Meeting, Migration
from horovod_elastic.aggregation.outbox import Outbox
from horovod_elastic.aggregation.peers import Node, Worker
from horovod_elastic.aggregation.plan import NEW, PART_BYTES, Hello, Plan
from horovod_elastic.aggregation.root_choice import RootChoice
from horovod_elastic.aggregation.root_link import RootLink
from horovod_elastic.aggregation.slow_roots import SlowRoot, SlowRoots
from horovod_elastic.trace import say

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOOK_S = 0.2
LEAST_BUFFER = 1 << 15
"""Bytes. With fewer than a packet or two in flight, each would wait until the other end acknowledges it."""
MOST_KEYS = 1 << 12
"""Limit of a generation's keys; at an Aggregator without workers, of a job's, whose generations overlap."""
COME_BACK_S = 1.0
"""Seconds within which workers must find an Aggregator that was started again. Later ones count as gone."""


class Session:
    """See the module. `own`: this Aggregator's node in the plan. Any thread may call it."""

    def __init__(
        self,
        plan: Plan,
        own: int,
        address: str,
        meter: JobMeter | None = None,
        quota: int = UNLIMITED,
    ) -> None:
        """`meter`, `quota`: of a pool's Aggregator, which serves several jobs."""
        self.plan = plan
        self._meter = meter
        self._quota = quota
        self._turn = no_turn if meter is None else meter.turn
        self.own = own
        self._lock = threading.RLock()
        self._written = threading.Condition(self._lock)
        """Notified when a part's result is not being written any more."""
        self._ours = frozenset(plan.nodes[own].ranks)
        self._keys: dict[int, KeyState] = {}
        self._choice = RootChoice(plan, own)
        self._slow_roots = SlowRoots()
        self._slow: SlowRoot | None = None
        """A root that is to be left out, as soon as the lock is free."""
        self._migration: Migration | None = None
        """To the Aggregators that are assigned and do not sum yet."""
        self._meeting = Meeting()
        """Of the nodes at a pool's Aggregator."""
        self._left: set[int] = set()
        self._workers: dict[int, Worker] = {}
        self._nodes: dict[int, Node] = {}
        """The connections of other nodes, which push to this Aggregator."""
        self._failed = ""
        self._closed = False
        self.connections = 0
        """How many there are of workers and nodes. The server counts them."""
        self._complete = threading.Event()
        """Set once this node's workers are here, with all keys of an Aggregator that is gone."""
        self._ready = False
        self._comes_back = False
        """Whether another Aggregator was here before. Workers have not long to find this one."""
        self._met: set[int] = set()
        """The roots that were reached."""
        self._early: list[tuple[int, KeyShape, int, Sequence[int], Worker]] = []
        """Keys of workers that have no memory for results. Others may still bring it."""
        self._address = address
        others = [index for index in range(len(plan.nodes)) if index != own and self._ours]
        self._roots = {index: RootLink(self, index, plan, index, address) for index in others}
        if not self._ours:
            self._complete.set()

    # --- who is there -------------------------------------------------------------------------------------

    def serve_worker(self, connection: socket.socket, hello: Hello) -> None:
        """Serve a worker of this node until it leaves. The connection's own thread calls it."""
        rank, worker = hello.number, Worker(connection, max(hello.keys, 0))
        with self._lock:
            if refusal := self._failed or self._refusal(rank):
                worker.say(Frame(Kind.FAILED), refusal.encode())
                return
            self._workers[rank] = worker
            self._note_predecessor(hello)
        self._look_complete()
        left = False
        try:
            left = self._hear_worker(connection, rank, worker)
        finally:
            with self._lock:
                if is_mine := self._workers.get(rank) is worker:
                    del self._workers[rank]
                    if left:
                        self._left.add(rank)
            if is_mine and not left and not self._failed:
                self.drop([rank])

    def _refusal(self, rank: int) -> str:
        if self._closed:
            return f"generation {self.plan.generation} is over"
        if rank not in self._ours:
            return f"rank {rank} is not on this node"
        return f"rank {rank} counts as gone" if rank in self._choice.gone else ""

    def _note_predecessor(self, hello: Hello) -> None:
        """Wait only a short time for workers, if one of them or another node has met an Aggregator here."""
        with self._lock:
            if hello.keys != NEW and not self._comes_back:
                self._comes_back = True
                threading.Timer(COME_BACK_S, self._come_back_no_more).start()

    def _come_back_no_more(self) -> None:
        with self._lock:
            missing = self._ours - self._workers.keys() - self._left
            if missing and not self._complete.is_set():
                self.drop(missing)

    def _look_complete(self) -> None:
        """Connect with the other nodes, once this node's workers are here with their keys."""
        with self._lock:
            here = self._workers.keys() | self._choice.gone | self._left
            if self._closed or not here >= self._ours:
                return
            if any(worker.keys_to_come for worker in self._workers.values()):
                return
            if not self._complete.is_set():
                self._complete.set()
                early, self._early = self._early, []
                for key, shape, rank, fds, worker in early:
                    self._register(key, shape, rank, fds, worker)
                for index, root in self._roots.items():
                    if self._choice.lives(index):
                        root.begin()
            self._look_ready()

    def serve_node(self, connection: socket.socket, hello: Hello) -> None:
        """Serve another node, whose sums of some parts this Aggregator adds up."""
        if hello.number == self.own:
            raise BadFrame(f"node {self.own} is this Aggregator's own")
        self.prepare(connection)
        self._note_predecessor(hello)
        while not self._complete.wait(LOOK_S):
            if self._closed or frames.is_closed(connection):
                return
        index = hello.number
        with self._lock:
            if self._closed:
                return
            node = Node(connection, index, None if self._meter is None else self._meter.spent)
            if self._choice.gone:
                node.outbox.add(*self._drop_frame(self._choice.gone))
            before, self._nodes[index] = self._nodes.get(index), node
        try:
            if before is not None:  # both would receive into the same memory
                before.end()
                before.over.wait()
            self._lost(index)
            self._look_ready()
            self._hear_node(connection, index, node.outbox)
        except BadFrame as error:
            node.outbox.add(Frame(Kind.FAILED), (str(error).encode(errors="replace"),))
            raise
        finally:
            with self._lock:
                if is_current := self._nodes.get(index) is node:
                    del self._nodes[index]
            node.over.set()
            if is_current:
                self._lost(index)
            node.outbox.ended()

    def prepare(self, connection: socket.socket) -> None:
        """Prepare a connection with another node: small parts mean that links are slow."""
        if self.plan.part_bytes < PART_BYTES:
            sockets.hold_at_most(connection, max(LEAST_BUFFER, self.plan.part_bytes))

    def _lost(self, node: int) -> None:
        """Ask others for the results that this node was to send, as it is not connected any more."""
        with self._lock:
            again = [(key, part) for key, state in self._keys.items() for part in state.lost(node)]
        for key, part in again:
            self._sum_nodes(key, part)

    def _look_ready(self) -> None:
        """Tell this node's workers, once everybody of the plan is connected with this Aggregator."""
        with self._lock:
            self._ready |= self._complete.is_set() and all(
                (root.outbox is not None and (index in self._nodes or self._choice.is_of_pool(index)))
                or not self._choice.lives(index)
                for index, root in self._roots.items()
            )
            for worker in self._workers.values() if self._ready else ():
                worker.ready()

    def drop(self, ranks: Iterable[int]) -> None:
        """Wait no longer for these ranks, which are gone. What they have pushed counts."""
        with self._lock:
            new = set(ranks) - self._choice.gone
            if not new or self._closed:
                return
            before = {number: self._roots_of(number) for number in self._keys}
            self._choice.gone |= new
            self._tell_gone(new)
            self._tell_new_roots(before)
            self._tell_met(self._meeting.look(self._living_nodes()))
        self._go_on(before)

    def leave_out(self, root: int) -> None:
        """Use this Aggregator of the pool no longer: it is gone, or slow. Others sum its parts."""
        with self._lock:
            is_next = self._migration is not None and root in self._migration.roots
            is_used = is_next or root in self._choice.pool
            if root in self._choice.left_out or not is_used or self._closed:
                return
            before = {number: self._roots_of(number) for number in self._keys}
            self._choice.left_out.add(root)
            for index, link in self._roots.items():
                if link.outbox is not None and index != root:
                    link.outbox.add(self._leave_out_frame(root))
            if root in self._roots:
                self._end_link(root)
            self._tell_new_roots(before)
        self._go_on(before)
        self._migrate_if_due()

    def _leave_out_frame(self, root: int) -> Frame:
        version, index = self._choice.name(root)
        return Frame(Kind.LEAVE_OUT, index, round=version)

    def _hear_leave_out(self, frame: Frame) -> None:
        root = self._choice.named(frame.round, frame.key)
        if root is not None:
            self.leave_out(root)

    def _leave_out_slow(self) -> None:
        """Use the pool's Aggregator no longer that makes all wait, if there is one."""
        with self._lock:
            slow, self._slow = self._slow, None
            if slow is None or not self._choice.lives(slow.root) or self._closed:
                return
        times = f"its sums take {slow.seconds:.1f} s, those of the others {slow.others_s:.1f} s"
        say(f"the Aggregator at {self._roots[slow.root].node.name} is not used any more: {times}")
        self.leave_out(slow.root)

    def _tell_new_roots(self, before: Mapping[int, Sequence[int]]) -> None:
        """Tell the roots of all parts that had another root `before`, by key, what this node has."""
        for key, roots in before.items():
            for part, root_before in enumerate(roots):
                if self._choice.root_of(key, part) != root_before:
                    self._tell_root(key, part)
                    self._send_known(key, part)

    def _go_on(self, keys: Mapping[int, Sequence[int]]) -> None:
        """Make the sums of these keys, by their parts, that nobody has to be waited for any more."""
        self._look_complete()
        for key, parts in keys.items():
            self._sum_workers(key)
            for part in range(len(parts)):
                self._sum_nodes(key, part)

    # --- other Aggregators of a pool ----------------------------------------------------------------------

    def assigned(self, made: Assignment) -> None:
        """Hear of an assignment. Rank 0's node leads the others to it, once all nodes have met.

        If an Aggregator is in both the present and the new one, the next generation takes it instead: that
        Aggregator would count the keys of both (JobMeter).
        """
        with self._lock:
            if not self._ready or 0 not in self._ours - self._choice.gone:
                return
            plan = control.with_assignment(self.plan, made)
            if not plan.pool & self.plan.pool:
                self.migrate(plan)

    def migrate(self, plan: Plan) -> None:
        """Have the pool's Aggregators of this plan sum, once they have met all nodes. Does not wait.

        A plan with an earlier assignment than the last one changes nothing.
        """
        with self._lock:
            newest = self.plan if self._migration is None else self._migration.plan
            if self._closed or plan.version <= newest.version:
                return
            if self._migration is not None:
                self._retire(self._migration.roots)
            self._migration = Migration(plan, self._choice.add(plan))
            for index in self._choice.ranked:
                if index != self.own and (outbox := self._roots[index].outbox) is not None:
                    outbox.add(*_migrate_frame(plan))
            for root, index in self._migration.roots.items():
                self._roots[root] = RootLink(self, root, plan, index, self._address)
                if self._complete.is_set():
                    self._roots[root].begin()
        self._migrate_if_due()

    def all_met(self, root: int) -> None:
        """Hear that this Aggregator of the pool has met all nodes."""
        with self._lock:
            if self._migration is not None:
                self._migration.all_met(root)
        self._migrate_if_due()

    def _migrate_if_due(self) -> None:
        """Give the sums to the Aggregators that have met all nodes, also those that are under way."""
        with self._lock:
            migration = self._migration
            if migration is None or self._closed or not migration.is_due(self._choice.lives):
                return
            before = {number: self._roots_of(number) for number in self._keys}
            self._migration, self.plan = None, migration.plan
            self._slow_roots, self._slow = SlowRoots(), None
            self._retire(self._choice.use(migration.roots))
            for worker in self._workers.values():
                worker.say(*_migrate_text(migration.plan))
            self._tell_new_roots(before)
        self._go_on(before)
        if 0 in self._ours:
            names = [node.name for node in migration.plan.nodes if not node.ranks]
            say(f"sums are made at {', '.join(names) or 'the nodes of the workers'} from now on")

    def _retire(self, roots: Iterable[int]) -> None:
        self._choice.retire(roots)
        for root in roots:
            self._end_link(root)

    def _hear_migrate(self, connection: socket.socket, frame: Frame) -> None:
        if not self._ours:
            raise BadFrame("a pool's Aggregator has no sums that could migrate")
        try:
            made = control.assignment_from_text(frames.receive_text(connection, frame).decode())
        except ValueError as error:
            raise BadFrame(str(error)) from error
        self.migrate(control.with_assignment(self.plan, made))

    def _living_nodes(self) -> list[int]:
        return [*filter(self._choice.lives, self._choice.ranked)]

    def _hear_met(self, node: int) -> None:
        """Make room for the sums of a node that has registered its keys; then it may begin."""
        for key, state in list(self._keys.items()):
            for part in range(len(state.parts)):
                with self._lock:  # for a short time: a job that sums here already must not wait
                    if not self._closed and self._choice.root_of(key, part) == self.own:
                        state.make_room(part, node)
        with self._lock:
            self._tell_met(self._meeting.comes(node, self._living_nodes()))

    def _tell_met(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if node in self._nodes:
                self._nodes[node].outbox.add(Frame(Kind.MET))

    def _tell_gone(self, new: Iterable[int]) -> None:
        """Tell the other nodes who is gone, and hear nothing more from nodes that have no worker left."""
        frame = self._drop_frame(new)
        for node in self._nodes.values():
            node.outbox.add(*frame)  # the other connection with that node may be away just now
        for index, root in self._roots.items():
            if root.outbox is not None:
                root.outbox.add(*frame)
            if not self._choice.lives(index):
                self._end_link(index)

    def _end_link(self, index: int) -> None:
        self._roots[index].close()
        self._roots[index].outbox = None
        for state in self._keys.values():
            state.lost(index)

    def usage(self) -> AggregatorUsage:
        """What this generation's sums are. A key that was summed once, as a model is sent, is no measure."""
        with self._lock:
            size = sum(state.shape.sent_size for state in self._keys.values())
            rounds = [
                (state.shape.size * done, done) for state in self._keys.values() if (done := state.rounds())
            ]
            return AggregatorUsage(size, max(rounds, default=(0, 0))[1], self.plan.version)

    def _drop_frame(self, ranks: Iterable[int]) -> tuple[Frame, tuple[bytes]]:
        return Frame(Kind.DROP), (mask_of(sorted(ranks), self.plan.size),)

    def fail(self, why: str) -> None:
        """Tell this node's workers that sums cannot go on."""
        with self._lock:
            if self._failed or self._closed:
                return
            self._failed = why
            for worker in self._workers.values():
                worker.say(Frame(Kind.FAILED), why.encode())

    def is_over(self) -> bool:
        """Whether all workers of this node have left, or are gone, or have heard that sums cannot go on.

        A pool's Aggregator has none. There, it is over when no node is connected.
        """
        with self._lock:
            if not self._ours:
                return not self._nodes
            return not self._workers and (bool(self._failed) or self._left | self._choice.gone >= self._ours)

    def close(self) -> None:
        """Leave the other nodes in order, and end all connections.

        Nothing more is heard from now on, and after FLUSH_S nothing more is sent: an evicted job cannot stay.
        """
        with self._lock:
            self._closed = True
            for root in self._roots.values():
                root.close()
            for node in self._nodes.values():
                node.outbox.add(Frame(Kind.BYE))
                node.end()
            for worker in self._workers.values():
                worker.close()
            for _, _, _, fds, _ in self._early:
                _close_all(fds)
            for state in self._keys.values():
                state.close()
                if self._meter is not None:
                    self._meter.register(-state.shape.size, -self._memory_of(state.shape), -1)
            self._early.clear()
            self._keys.clear()  # connections that end slowly must not keep the memory of sums

    # --- workers of this node -----------------------------------------------------------------------------

    def _hear_worker(self, connection: socket.socket, rank: int, worker: Worker) -> bool:
        """Hear a worker. Returns whether it left in order; otherwise the connection broke."""
        while True:
            try:
                frame, fds = frames.receive_with_fds(connection)
            except (EOFError, OSError):
                return False
            if frame.kind is not Kind.REGISTER:
                _close_all(fds)
            if frame.kind is Kind.PUSH:
                with self._lock:
                    self._known(frame.key).pushes(rank, frame.round)
                self._sum_workers(frame.key)
            elif frame.kind is Kind.REGISTER:
                self._hear_register(connection, frame, rank, fds, worker)
            elif frame.kind is Kind.DROP:
                self.hear_drop(connection, frame)
            elif frame.kind is Kind.PING:
                worker.say(Frame(Kind.PONG))
            elif frame.kind is Kind.BYE:
                return True
            else:
                raise BadFrame(f"a worker sends {frame.kind.name}")

    def _hear_register(
        self, connection: socket.socket, frame: Frame, rank: int, fds: Sequence[int], worker: Worker
    ) -> None:
        try:
            shape = shape_from_bytes(frames.receive_text(connection, frame))
        except (BadFrame, EOFError, OSError):
            _close_all(fds)
            raise
        with self._lock:
            if len(fds) == 1 and not self._complete.is_set():
                self._early.append((frame.key, shape, rank, fds, worker))
            else:
                self._register(frame.key, shape, rank, fds, worker)
            worker.keys_to_come = max(0, worker.keys_to_come - 1)
            self._look_complete()

    def _register(self, key: int, shape: KeyShape, rank: int, fds: Sequence[int], worker: Worker) -> None:
        try:
            if not fds:
                raise BadFrame("a worker's key has no memory")
            state = self._state(key, shape, fds[1] if len(fds) > 1 else -1)
            state.inputs[rank] = InputMemory(shape, fds[0])
        finally:
            _close_all(fds)
        worker.send_fd(Frame(Kind.REGISTERED, key), state.result.fd)
        if number := state.all_done():
            worker.say(Frame(Kind.DONE, key, round=number))

    def _state(self, key: int, shape: KeyShape, fd: int = -1) -> KeyState:
        """The key's state, made when the first of workers and nodes registers it."""
        state = self._keys.get(key)
        if state is None:
            if self._closed:
                raise EOFError("the generation is over")
            if key >= MOST_KEYS:
                raise BadFrame(f"a key with the number {key}; a generation has at most {MOST_KEYS}")
            self._charge(shape)
            own = os.dup(fd) if fd >= 0 else -1
            state = self._keys[key] = KeyState(
                shape, self.plan.part_bytes, self.plan.size, own, shared=bool(self._ours)
            )
            for root in self._roots.values():
                if root.outbox is not None:
                    root.outbox.add(Frame(Kind.REGISTER, key), (shape_to_bytes(shape),))
        elif state.shape != shape:
            raise BadFrame(f"key {key} is {state.shape} to some and {shape} to others")
        return state

    def _charge(self, shape: KeyShape) -> None:
        """Count a new key. Raises BadFrame if the job has more than it may have."""
        if self._meter is None:
            return
        memory = self._memory_of(shape)
        registered, keys = self._meter.register(shape.size, memory, 1)
        if registered <= self._quota and keys <= MOST_KEYS:
            return
        self._meter.register(-shape.size, -memory, -1)
        if keys > MOST_KEYS:
            raise BadFrame(f"{keys} keys of one job; at most {MOST_KEYS} are allowed")
        raise BadFrame(f"sums that take {registered} bytes; the job's token allows {self._quota}")

    def _memory_of(self, shape: KeyShape) -> int:
        """The most bytes that a key takes here: for the sum of each node, and for the result."""
        return len(self._choice.ranked) * shape.sent_size + shape.size

    def _known(self, key: int) -> KeyState:
        if self._closed:
            raise EOFError("the generation is over")
        state = self._keys.get(key)
        if state is None:
            raise BadFrame(f"key {key} was never registered")
        return state

    def _sum_workers(self, key: int) -> None:
        """Sum this node's workers, if all that live have pushed, and pass the sum on part by part."""
        with self._lock:
            state = self._keys.get(key)
            claim = None if state is None else state.node_ready(self._ours - self._choice.gone)
            if claim is not None and len(self._choice.pool) > 1:
                self._slow_roots.begins(key, self._choice.shares(), time.monotonic())
        if state is not None and claim is not None:
            for part in range(len(state.parts)):
                if state.done(part) < claim.number:
                    self._sum_workers_part(key, state, part, claim)

    def _sum_workers_part(self, key: int, state: KeyState, part: int, claim: Claim) -> None:
        where = state.parts[part]
        summands = [state.inputs[rank].numbers[where] for rank in claim.summands]
        if self._choice.is_alone():
            adding.add_up(summands, state.result.numbers[where], state.shape.dtype)
            self._is_whole(key, state, part, claim.number, claim.mask)
            return
        into = state.node_sum(part)
        if into.ctypes.data != summands[0].ctypes.data:
            adding.add_up(summands, into, state.shape.dtype)
        with self._lock:
            if self._closed:
                return
            state.node_summed(part, claim.number, claim.mask)
            self._tell_root(key, part, have=False)
        self._sum_nodes(key, part)

    # --- nodes --------------------------------------------------------------------------------------------

    def _roots_of(self, key: int) -> list[int]:
        return [self._choice.root_of(key, part) for part in range(len(self._keys[key].parts))]

    def _tell_root(self, key: int, part: int, *, have: bool = True) -> None:
        """Push this node's sum of a part to the part's root, or tell it that this node `have`s its result."""
        state, root = self._keys[key], self._choice.root_of(key, part)
        number, mask = state.own_sum(part)
        if root == self.own:
            if number:
                state.arrives(part, self.own, number, mask)
            return
        link = self._roots.get(root)  # a pool's Aggregator has nothing to tell others
        outbox = None if link is None else link.outbox
        if outbox is None:
            return  # it hears of it when it is there
        if have and state.done(part):
            outbox.add(Frame(Kind.HAVE, key, part, state.done(part)))
        if number:
            outbox.add(Frame(Kind.PUSH, key, part, number), (mask, _bytes(state.node_sum(part))))

    def _send_known(self, key: int, part: int) -> None:
        """Send a part's result, if this root has just become it, to nodes that pushed before it knew."""
        state = self._keys[key]
        if self._choice.root_of(key, part) == self.own:
            for node in state.behind(part):
                if node in self._nodes:
                    self._nodes[node].outbox.add(*self._result(key, state, part))

    def _hear_node(self, connection: socket.socket, node: int, outbox: Outbox) -> None:
        scratch = memoryview(bytearray(1 << 16))
        clock = ThreadClock(None if self._meter is None else self._meter.spent)
        while not self._closed:  # what has come before a connection is shut down is still received
            frame = frames.receive(connection)
            if frame.kind is Kind.PUSH:
                self._hear_push(connection, node, frame, outbox, scratch)
            elif frame.kind is Kind.REGISTER:
                shape = shape_from_bytes(frames.receive_text(connection, frame))
                with self._lock:
                    self._state(frame.key, shape)
            elif frame.kind is Kind.HAVE:
                with self._lock:
                    self._part_of(frame).has(frame.part, node, frame.round)
                self._sum_nodes(frame.key, frame.part)
            elif frame.kind is Kind.RESULT:
                self.hear_result(connection, frame, scratch, self.own)
            elif frame.kind is Kind.PING:
                outbox.answer()
            else:
                self._hear_who_sums(connection, node, frame)
            clock.tick()

    def _hear_who_sums(self, connection: socket.socket, node: int, frame: Frame) -> None:
        """Hear from a node who is gone, or is to sum next."""
        if frame.kind is Kind.DROP:
            self.hear_drop(connection, frame)
        elif frame.kind is Kind.LEAVE_OUT:
            self._hear_leave_out(frame)
        elif frame.kind is Kind.MIGRATE:
            self._hear_migrate(connection, frame)
        elif frame.kind is Kind.MET:
            self._hear_met(node)
        else:
            raise BadFrame(f"a node sends {frame.kind.name}")

    def hear_drop(self, connection: socket.socket, frame: Frame) -> None:
        """Hear of ranks that are gone. Raises BadFrame, EOFError, OSError."""
        if frame.size != mask_bytes(self.plan.size):
            raise BadFrame(f"a mask of {frame.size} bytes for {self.plan.size} ranks")
        self.drop(ranks_in(frames.receive_text(connection, frame)))

    def _hear_push(
        self, connection: socket.socket, node: int, frame: Frame, outbox: Outbox, scratch: memoryview
    ) -> None:
        with self._lock:
            state = self._part_of(frame)
            into = _bytes(state.received(frame.part, node))
            known = state.latest(frame.part, node)
        mask = bytearray(mask_bytes(self.plan.size))
        if frame.size != len(mask) + into.nbytes:
            raise BadFrame(f"a push of {frame.size} bytes for key {frame.key}, part {frame.part}")
        frames.fill(connection, memoryview(mask))
        if frame.round <= known:
            frames.drain(connection, into.nbytes, scratch)
            with self._lock:
                if frame.round == state.done(frame.part):
                    outbox.add(*self._result(frame.key, state, frame.part))
            return
        frames.fill(connection, into)
        with self._lock:
            state.arrives(frame.part, node, frame.round, bytes(mask))
        self._sum_nodes(frame.key, frame.part)

    def _part_of(self, frame: Frame) -> KeyState:
        state = self._known(frame.key)
        if frame.part >= len(state.parts):
            raise BadFrame(f"key {frame.key} has no part {frame.part}")
        return state

    def _sum_nodes(self, key: int, part: int) -> None:
        """Sum a part over all nodes, if this is its root and all that live have pushed."""
        with self._lock:
            state = self._keys.get(key)
            if state is None or self._choice.root_of(key, part) != self.own:
                return
            claim = state.claim(part, self._living_nodes())
            wanted = None if claim is not None else state.to_fetch(part)
            if wanted is not None and wanted[0] in self._nodes:
                self._nodes[wanted[0]].outbox.add(Frame(Kind.FETCH, key, part, wanted[1]))
        if claim is not None:
            summands = [
                state.node_sum(part) if node == self.own else state.received(part, node)
                for node in claim.summands
            ]
            into = state.result.numbers[state.parts[part]]
            with self._turn(into.nbytes * len(summands)):
                adding.add_up(summands, into, state.shape.dtype)
            self._is_whole(key, state, part, claim.number, claim.mask)
            with self._lock:
                if key in self._keys and self._choice.root_of(key, part) != self.own:
                    self._tell_root(key, part)  # the sums have migrated meanwhile

    def _is_whole(self, key: int, state: KeyState, part: int, number: int, mask: bytes) -> None:
        """A part of the result is in memory: tell whoever waits for it."""
        with self._lock:
            all_there = state.is_whole(part, number, mask)
            self._written.notify_all()
            root = self._choice.root_of(key, part)
            self._slow_roots.has_part(key, root, time.monotonic())
            if all_there:
                self._slow = self._slow_roots.ends(key) or self._slow
            if root == self.own:
                result = self._result(key, state, part)
                for node in self._nodes.values():
                    node.outbox.add(*result)
            for worker in self._workers.values() if all_there else ():
                worker.say(Frame(Kind.DONE, key, round=number))

    def _result(self, key: int, state: KeyState, part: int) -> tuple[Frame, tuple[bytes, memoryview]]:
        numbers = _bytes(state.result.numbers[state.parts[part]])
        return Frame(Kind.RESULT, key, part, state.done(part)), (state.result.contributors(part), numbers)

    # --- called by the links to roots ---------------------------------------------------------------------

    def was_met(self, root: int) -> bool:
        """Whether this node or its workers have met this root in this generation before."""
        with self._lock:
            return self._comes_back or root in self._met

    def reached_root(self, root: int, outbox: Outbox) -> None:
        """Tell a root that was just reached everything that it needs."""
        with self._lock:
            if self._closed or not self._choice.lives(root):
                outbox.end()
                return
            self._roots[root].outbox = outbox
            self._met.add(root)
            if self._choice.gone:
                outbox.add(*self._drop_frame(self._choice.gone))
            if not self._choice.is_of_pool(root):
                newest = self.plan if self._migration is None else self._migration.plan
                outbox.add(*_migrate_frame(newest))
            for left_out in self._choice.left_out:
                outbox.add(self._leave_out_frame(left_out))
            for key, state in self._keys.items():
                outbox.add(Frame(Kind.REGISTER, key), (shape_to_bytes(state.shape),))
                for part in range(len(state.parts)):
                    if self._choice.root_of(key, part) == root:
                        self._tell_root(key, part)
            if self._choice.is_of_pool(root):
                outbox.add(Frame(Kind.MET))
        self._look_ready()

    def forget_root(self, root: int) -> bool:
        """Note that there is no connection to this root. Returns whether there was one."""
        with self._lock:
            link = self._roots[root]
            had, link.outbox = link.outbox is not None, None
            return had

    def hear_result(self, connection: socket.socket, frame: Frame, scratch: memoryview, root: int) -> None:
        """Receive a result of a part whose root is `root`. Raises BadFrame, EOFError, OSError.

        A result of a root that is not the part's any more is none: the new root has heard that this node does
        not have it, and may have made another one of those who live.
        """
        with self._lock:
            state = self._part_of(frame)
        into = _bytes(state.result.numbers[state.parts[frame.part]])
        mask = bytearray(state.result.mask_bytes)
        if frame.size != len(mask) + into.nbytes:
            raise BadFrame(f"a result of {frame.size} bytes for key {frame.key}, part {frame.part}")
        frames.fill(connection, memoryview(mask))
        with self._lock:
            if wanted := self._wants(frame, state, root):
                state.writes(frame.part)
        if not wanted:
            frames.drain(connection, into.nbytes, scratch)
            return
        whole = False
        try:
            frames.fill(connection, into)
            whole = True
        finally:
            with self._lock:
                state.gives_up(frame.part)
                self._written.notify_all()
                if whole := whole and self._choice.root_of(frame.key, frame.part) == root:
                    self._is_whole(frame.key, state, frame.part, frame.round, bytes(mask))
            if not whole:
                self._sum_nodes(frame.key, frame.part)
        self._leave_out_slow()

    def _wants(self, frame: Frame, state: KeyState, root: int) -> bool:
        """Whether to receive a result, once nothing else is written into its memory."""
        while self._choice.root_of(frame.key, frame.part) == root and frame.round > state.done(frame.part):
            if not state.is_busy(frame.part):
                return True
            self._written.wait()  # for a root before, whose connection is closed
        return False

    def fetched(self, frame: Frame) -> tuple[Frame, tuple[bytes, memoryview]] | None:
        """The answer to FETCH; None if the result is not there."""
        with self._lock:
            state = self._part_of(frame)
            return (
                self._result(frame.key, state, frame.part) if state.done(frame.part) == frame.round else None
            )


def _migrate_text(plan: Plan) -> tuple[Frame, bytes]:
    return Frame(Kind.MIGRATE), control.assignment_to_text(control.assignment_of(plan)).encode()


def _migrate_frame(plan: Plan) -> tuple[Frame, tuple[bytes]]:
    frame, text = _migrate_text(plan)
    return frame, (text,)


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _bytes(array: Array) -> memoryview:
    return memoryview(cast("Buffer", array)).cast("B")
