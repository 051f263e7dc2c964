"""One generation's communicator: it negotiates the script's requests with other ranks and carries them out.

The script's threads submit works and wait for them. Requests go to rank 0 through a channel, several at a
time. One thread carries out the responses, in the order in which they arrive. When a rank is gone, the
communicator ends: works fail, and the groups' connections are broken. So nobody waits for a member that
itself waits.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch

from horovod_elastic import threads
from horovod_elastic.aggregation.client import AggregationClient
from horovod_elastic.core import choice, meeting, python_layer
from horovod_elastic.core.c10d import service
from horovod_elastic.core.c10d.alone import Alone
from horovod_elastic.core.c10d.attendance import Attendance
from horovod_elastic.core.c10d.broadcast_store import BroadcastStore
from horovod_elastic.core.c10d.channel import Channel
from horovod_elastic.core.c10d.collectives import Collectives
from horovod_elastic.core.c10d.groups import Groups
from horovod_elastic.core.c10d.hub import Hub
from horovod_elastic.core.c10d.messages import Blocked, Heard, Step, WaitStep
from horovod_elastic.core.c10d.negotiation import Negotiation
from horovod_elastic.core.c10d.requests import (
    GLOBAL_SET,
    Operation,
    RequestKey,
    Response,
    is_fusable,
    key_of,
    size_bytes,
)
from horovod_elastic.core.c10d.spoke import Spoke
from horovod_elastic.core.c10d.sums import Sums
from horovod_elastic.core.c10d.tensor_transport import GlooTransport
from horovod_elastic.core.c10d.timeline import Timeline
from horovod_elastic.core.c10d.work import Work
from horovod_elastic.core.interface import CoreFailed, Disagreement, RankPlacement, TensorTransport

FUSION_BYTES = 16 * 2**20
"""The default of HOROVOD_FUSION_THRESHOLD, in bytes."""
SAY_AFTER_S = 0.005
"""Seconds after which a request is sent whose thread neither waits nor makes more requests."""
BLOCKED_AFTER_S = 0.5
"""Seconds of a wait after which a rank reports the request that blocks it. The report matters only if all
ranks are blocked."""
FAREWELL_S = 5.0
"""Seconds that a member that leaves waits for the other members, which leave at the same boundary."""
_HUB = "core/hub"
_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator:
    """The communicator of one generation (see the module). Nothing is connected before `build`.

    `process_sets`: the ranks of each; the sets have the numbers 1, 2, ... `before`: this rank's in the
    previous generation, if there was one: the next one uses the same GPU, and probably sums the same tensors.
    """

    def __init__(
        self,
        place: RankPlacement,
        process_sets: Sequence[Sequence[int]],
        timeline: Timeline,
        before: Communicator | None = None,
    ) -> None:
        self.place = place
        self.waited_s = 0.0
        """Seconds that threads have waited for works, in all."""
        self._timeline = timeline
        self.gpu: torch.device | None = None
        """The GPU of this rank's tensors if NCCL is used for them, otherwise None."""
        self._gpu_before = None if before is None else before.gpu
        self._client_before = None if before is None else before._client
        self._fusion_bytes = _fusion_bytes()
        self._sets = {GLOBAL_SET: tuple(range(place.size))}
        for members in map(tuple, process_sets):  # python_layer.begin leaves out the same sets
            if python_layer.can_be(members, place.size) and members not in self._sets.values():
                self._sets[len(self._sets)] = members
        self._store = BroadcastStore(self._put)
        self._store.set_timeout(timedelta(seconds=python_layer.gloo_timeout_s()))
        self._channel: Channel | None = None
        self._groups: Groups | None = None
        self._collectives: Collectives | None = None
        self._client: AggregationClient | None = None
        self._attendance = Attendance(place.size)
        self._here = threading.Event()
        self._all_left = threading.Event()
        self._lock = threading.Lock()
        """The lock of the attributes from here to `_broken`. Nothing is sent while it is held."""
        self._outstanding: dict[RequestKey, Work] = {}
        self._unsaid: list[Step] = []
        self._unsaid_bytes = 0
        self._has_waited = True
        """Whether this rank has made no request since it last reported that it waits."""
        self._broken = ""
        self._saying = threading.Lock()
        """A lock that keeps steps in their order while they are sent."""
        self._something_unsaid = threading.Event()
        self._carrier: threading.Thread | None = None
        self._decided: queue.SimpleQueue[Heard | None] = queue.SimpleQueue()

    # --- building -------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Connect with all members; blocks until all have done so. Raises CoreFailed, also after `break_`."""
        _live.add(self)  # from here on: a process forked during the build must not keep connections open
        try:
            self._connect()
            self._meet_in_groups()
            if self.place.size > 1:
                self._carrier = threads.start(
                    self._carry_out_all, name="flexo-carry-out", failed=self._thread_failed
                )
                threads.start(self._say_late, name="flexo-say", failed=self._thread_failed)
        except Exception as error:  # any error: what is half built must be closed
            why = self._broken or str(error)
            self.break_(why)
            self.close()
            raise CoreFailed(f"generation {self.place.generation} was not built: {why}") from error

    def _connect(self) -> None:
        place = self.place
        if place.size == 1:
            self._channel = Alone(self._negotiation(), self)
            return
        met = meeting.meet(place, self.is_broken)
        if met is None:
            raise RuntimeError("its rendezvous was closed")
        if place.rank == 0:
            token = secrets.token_hex(16)
            hub = Hub(met.own_address, place.size, token, self._negotiation(), self)
            self._channel = hub
            meeting.put(place, _HUB, f"{met.own_address} {hub.port} {token}".encode())
        else:
            found = meeting.look_up(place, _HUB, self.is_broken)
            if found is None:
                raise RuntimeError("its rendezvous was closed")
            host, port, token = found.body.decode().split()
            self._channel = Spoke((host, int(port)), place.rank, token, self)
        limit = time.monotonic() + python_layer.gloo_timeout_s()
        while not self._here.wait(0.5) and not self._broken:
            if time.monotonic() > limit:
                raise RuntimeError("a member did not come in time")
        if self._broken:
            raise RuntimeError(self._broken)

    def _negotiation(self) -> Negotiation:
        return Negotiation(self.place.size, self._fusion_bytes, self._sets)

    def _meet_in_groups(self) -> None:
        assert self._channel is not None
        before, self._client_before = self._client_before, None  # it would keep that generation's memory
        store = self._store if self.place.size > 1 else None
        rank = self.place.rank
        groups = Groups(
            rank, self.place.size, self._channel.own_address, store, python_layer.gloo_timeout_s()
        )
        with self._lock:
            self._groups = groups
            if self._broken:
                raise RuntimeError(self._broken)
        for number, members in self._sets.items():
            groups.build(number, members)
        if not choice.sums_by_service():
            groups.connect_gpus(GLOBAL_SET, self._gpu_before)
        client = None
        if self.place.size > 1 and choice.sums_by_service():
            client = service.connected(self.place, self._store, self.is_broken, self._sums_failed, before)
        if self.place.size > 1:  # the first collective shows that all others have come this far, too
            without = torch.tensor([0 if client is not None else 1])
            groups.gloo(GLOBAL_SET).allreduce([without]).wait()
            if client is not None and without.item():
                client.close(in_order=True)
                client = None
        with self._lock:
            self._client = client
        if self.outlives:
            self._channel.outlive()
        self._collectives = Collectives(groups, rank, self.sums(1))

    def _sums_failed(self, why: str) -> None:
        service.note_failure()
        self.break_(f"sums by Aggregators failed: {why}")

    def is_broken(self) -> bool:
        """Whether the communicator is broken, because a rank is gone, or closed."""
        return bool(self._broken)

    # --- asked by the script's threads ----------------------------------------------------------------------

    def submit(self, work: Work) -> None:
        """Submit a request.

        Raises ValueError if its name is outstanding, RuntimeError if the communicator is broken.
        """
        request = work.request
        key = key_of(request)
        with self._lock:
            if self._broken:
                raise RuntimeError(self._broken)
            if key in self._outstanding:
                raise ValueError(
                    f"Duplicate tensor name {request.name}: it was submitted before and is not done yet. "
                    "Give every tensor that is outstanding at the same time a name of its own."
                )
            self._outstanding[key] = work
            self._unsaid.append(request)
            self._unsaid_bytes += size_bytes(request)
            self._has_waited = False
            at_once = not is_fusable(request) or self._unsaid_bytes >= self._fusion_bytes
        if at_once or self.place.size == 1:
            self._say()
        else:
            self._something_unsaid.set()

    def wait(self, work: Work) -> None:
        """Wait until the work is finished. Raises the work's error: RuntimeError, or Disagreement."""
        began = time.perf_counter()
        self._say(waits=True)
        try:
            if not work.done_within(BLOCKED_AFTER_S):
                self._say(blocked_by=work)
            work.wait()
        finally:
            self.waited_s += time.perf_counter() - began

    def poll(self, work: Work) -> bool:
        """Whether the work is finished, successfully or not."""
        self._say(waits=True)
        return work.done()

    def process_sets(self) -> Mapping[int, tuple[int, ...]]:
        """The ranks of each process set, in ascending order, by the set's number."""
        with self._lock:
            return dict(self._sets)

    def transport(self) -> TensorTransport | None:
        """The transport between the members; None if there is only one."""
        return None if self._groups is None or self.place.size == 1 else GlooTransport(self._groups)

    def groups(self) -> Groups:
        """The process groups of the members. Raises RuntimeError before `build`."""
        if self._groups is None:
            raise RuntimeError("the communicator is not built")
        return self._groups

    def sums(self, at_once: int) -> Sums | None:
        """Sums of all ranks by Aggregators; None if this generation uses its all-reduce (see Sums)."""
        return None if self._client is None else Sums(self._client, self._attendance, at_once)

    def absent(self) -> frozenset[int]:
        """The ranks that have died and are in no average of the last step (see Attendance)."""
        return self._attendance.absent()

    @property
    def outlives(self) -> bool:
        """Whether the others go on if a rank dies that is not rank 0."""
        return self._client is not None and self._groups is not None and not self._groups.has_nccl()

    def address(self) -> str:
        """This machine's address towards the members. Raises RuntimeError before `build`."""
        if self._channel is None:
            raise RuntimeError("the communicator is not built")
        return self._channel.own_address

    def entries(self) -> BroadcastStore:
        """The store in which the members find each other; it goes on until the communicator ends."""
        return self._store

    def _say(self, *, waits: bool = False, blocked_by: Work | None = None) -> None:
        """Send rank 0 all steps that were not sent yet.

        `waits`: whether this rank waits now. `blocked_by`: the work that this rank has waited for too long.
        """
        with self._saying:
            with self._lock:
                if waits and not self._has_waited:
                    self._has_waited = True
                    self._unsaid.append(WaitStep())
                if blocked_by is not None and key_of(blocked_by.request) in self._outstanding:
                    self._unsaid.append(Blocked(key_of(blocked_by.request)))
                steps, self._unsaid, self._unsaid_bytes = self._unsaid, [], 0
            if steps and self._channel is not None:
                self._channel.steps(steps)

    def _say_late(self) -> None:
        while not self._broken:
            self._something_unsaid.wait()
            self._something_unsaid.clear()
            time.sleep(SAY_AFTER_S)
            self._say()

    def _put(self, key: str, value: bytes) -> None:
        assert self._channel is not None
        self._channel.put(key, value)

    # --- heard from rank 0 (channel.Listener) ---------------------------------------------------------------

    def all_here(self) -> None:
        """See Listener.all_here."""
        self._here.set()

    def entry(self, key: str, value: bytes) -> None:
        """See Listener.entry."""
        self._store.heard(key, value)

    def heard(self, heard: Heard) -> None:
        """See Listener.heard. A rank that is alone carries the operation out at once."""
        if self.place.size == 1:
            self._carry_out(heard)
        else:
            self._decided.put(heard)

    def gone(self, rank: int) -> None:
        """See Listener.gone."""
        if self._client is not None:
            self._client.gone(rank)

    def all_left(self) -> None:
        """See Listener.all_left."""
        self._all_left.set()

    def broken(self, why: str) -> None:
        """See Listener.broken."""
        if not self._all_left.is_set():
            self._end(why)

    # --- carrying out ---------------------------------------------------------------------------------------

    def _carry_out_all(self) -> None:
        while (heard := self._decided.get()) is not None:
            self._carry_out(heard)

    def _carry_out(self, heard: Heard) -> None:
        works: list[Work | None] = []
        error: Exception | None = None
        try:
            with self._lock:
                if self._broken:
                    return
                works = [self._outstanding.pop(key) for key in heard.keys]
            error = self._carry_out_works(heard, works)
        except Exception as failure:  # any error: threads wait for the works, and nobody else finishes them
            self.break_(f"a collective failed: {failure}")
            error = RuntimeError(self._broken)  # the first reason: a peer that is gone, most often
        for work in works:
            if work is not None:
                work.finish(error)

    def _carry_out_works(self, heard: Heard, works: list[Work | None]) -> Exception | None:
        """Carry out the decision. Returns the error that rank 0 has sent, or None; raises other errors."""
        requests = heard.requests or tuple(work.request for work in works if work is not None)
        if heard.error:
            return RuntimeError(heard.error) if heard.ended else Disagreement(heard.error)
        response = Response(requests, heard.first_dimensions, heard.splits, heard.result)
        began_s = time.perf_counter()
        self._do(response, works or [None] * len(requests))
        self._timeline.carried_out(response, began_s, time.perf_counter())
        return None

    def _do(self, response: Response, works: Sequence[Work | None]) -> None:
        operation = response.requests[0].operation
        if operation in (Operation.BARRIER, Operation.JOIN):
            pass
        elif operation is Operation.ADD_PROCESS_SET:
            self._add_process_set(response.result, response.requests[0].members)
        elif operation is Operation.REMOVE_PROCESS_SET:
            self._remove_process_set(response.result, response.requests[0].removed_set)
        else:
            assert self._collectives is not None
            self._collectives.carry_out(response, works)
            self.gpu = self._collectives.gpu or self.gpu
        for work in works:
            if work is not None:
                work.result = response.result

    def _add_process_set(self, number: int, members: tuple[int, ...]) -> None:
        assert self._groups is not None
        if number >= 0:
            self._groups.build(number, members)
            with self._lock:
                self._sets[number] = members

    def _remove_process_set(self, result: int, number: int) -> None:
        assert self._groups is not None
        if result == 0:
            self._groups.remove(number)
            with self._lock:
                del self._sets[number]

    # --- the end --------------------------------------------------------------------------------------------

    def break_(self, why: str) -> None:
        """Make all works fail, here and at the other ranks, as well as builds. Any thread may call it."""
        self._end(why)
        if self._channel is not None:
            self._channel.hang_up(why)

    def _thread_failed(self, error: Exception) -> None:
        """Break the communicator after its thread has failed.

        Without that thread, nobody would carry out works or send their requests, and waits would not end.
        """
        self.break_(f"rank {self.place.rank} failed: {error!r}")

    def _end(self, why: str) -> None:
        """End the communicator at this rank only. The first reason counts."""
        with self._lock:
            if self._broken:
                return
            self._broken = why
            works, self._outstanding = list(self._outstanding.values()), {}
            groups, client = self._groups, self._client
        self._store.close(why)
        if client is not None:
            client.close(in_order=False)
        try:
            if groups is not None:
                groups.break_connections()
        finally:  # even after an error, nobody may wait for ever
            for event in (self._here, self._all_left, self._something_unsaid):
                event.set()
            self._decided.put(None)
            for work in works:
                work.finish(RuntimeError(why))

    def settle(self) -> None:
        """Wait, after the communicator's end, until nothing writes into any work's tensors any more."""
        if self._carrier is not None:
            self._carrier.join(python_layer.gloo_timeout_s())

    def close(self) -> None:
        """Leave in order: wait a short time until all other ranks leave, too. Nothing may be outstanding."""
        if self._channel is not None and not self._broken:
            self._say()
            self._channel.leave()
            self._all_left.wait(FAREWELL_S)
            if self._client is not None and not self._broken:
                self._client.close(in_order=True)
        self._end("it was closed")
        if self._channel is not None:
            self._channel.close()
        if self._groups is not None:
            self._groups.close()
        self.settle()
        self._collectives = None  # otherwise its buffers would stay until the next garbage collection
        _live.discard(self)

    def forget(self) -> None:
        """Close a forked process's copies of the connections, which would keep the connections open."""
        if self._channel is not None:
            self._channel.forget()
        if self._client is not None:
            self._client.forget()


def _fusion_bytes() -> int:
    text = os.environ.get("HOROVOD_FUSION_THRESHOLD", "")
    return int(text) if text.isdecimal() else FUSION_BYTES


def _forget_all() -> None:
    for communicator in list(_live):
        communicator.forget()


os.register_at_fork(after_in_child=_forget_all)
