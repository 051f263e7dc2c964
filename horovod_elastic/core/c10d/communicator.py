"""One generation's communicator: what the script asks for, negotiated with the others and carried out.

The script's threads submit works and wait for them. What they ask for is said to rank 0 through a channel,
some requests at a time; what all are to do is carried out by one thread, in the order in which it is heard.
When somebody is gone all of it ends: works fail, and the groups' connections are broken, so that nobody
waits for a member that itself waits.
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
from horovod_elastic.core import meeting, python_layer
from horovod_elastic.core.c10d.alone import Alone
from horovod_elastic.core.c10d.channel import Channel
from horovod_elastic.core.c10d.collectives import Collectives
from horovod_elastic.core.c10d.courier import GlooCourier
from horovod_elastic.core.c10d.groups import Groups
from horovod_elastic.core.c10d.hub import Hub
from horovod_elastic.core.c10d.negotiation import Negotiation
from horovod_elastic.core.c10d.requests import (
    GLOBAL_SET,
    Key,
    Operation,
    Response,
    is_fusable,
    key_of,
    size_bytes,
)
from horovod_elastic.core.c10d.shelf import Shelf
from horovod_elastic.core.c10d.spoke import Spoke
from horovod_elastic.core.c10d.timeline import Timeline
from horovod_elastic.core.c10d.words import Blocked, Heard, Step, Waits
from horovod_elastic.core.c10d.work import Work
from horovod_elastic.core.interface import CoreFailed, Courier, Disagreement, Place

FUSION_BYTES = 16 * 2**20
"""HOROVOD_FUSION_THRESHOLD says otherwise."""
SAY_AFTER_S = 0.005
"""What was asked for by a thread that then neither waits nor asks for more is said so much later."""
BLOCKED_AFTER_S = 0.5
"""Who waits for longer says for what: only where nothing goes on at all does it matter."""
FAREWELL_S = 5.0
"""Members leave at the same boundary; nobody waits longer for the last of them."""
_HUB = "core/hub"
_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator:
    """See the module. Nothing is connected before `build`. `process_sets` have the numbers 1, 2, ...

    `gpu`: where this rank's tensors were in the generation before, if on a GPU.
    """

    def __init__(
        self,
        place: Place,
        process_sets: Sequence[Sequence[int]],
        timeline: Timeline,
        gpu: torch.device | None = None,
    ) -> None:
        self.place = place
        self.waited_s = 0.0
        """Seconds that threads have waited for works, in all."""
        self._timeline = timeline
        self._gpu_before = gpu
        self._fusion_bytes = _fusion_bytes()
        self._sets = {GLOBAL_SET: tuple(range(place.size))}
        for members in map(tuple, process_sets):  # python_layer.begin leaves out the same ones
            if python_layer.can_be(members, place.size) and members not in self._sets.values():
                self._sets[len(self._sets)] = members
        self._shelf = Shelf(self._put)
        self._shelf.set_timeout(timedelta(seconds=python_layer.gloo_timeout_s()))
        self._channel: Channel | None = None
        self._groups: Groups | None = None
        self._collectives: Collectives | None = None
        self._here = threading.Event()
        self._all_left = threading.Event()
        self._lock = threading.Lock()
        """Of what follows; nothing is said while it is held."""
        self._outstanding: dict[Key, Work] = {}
        self._unsaid: list[Step] = []
        self._unsaid_bytes = 0
        self._has_waited = True
        """Nothing was asked for since it was last said that this rank waits."""
        self._broken = ""
        self._saying = threading.Lock()
        """Steps are said in their order."""
        self._something_unsaid = threading.Event()
        self._carrier: threading.Thread | None = None
        self._decided: queue.SimpleQueue[Heard | None] = queue.SimpleQueue()

    # --- building -------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Connect with all members; blocks until all have. Raises CoreFailed, also after `break_`."""
        _live.add(self)  # also while it is built: a process forked meanwhile must not keep it open
        try:
            self._connect()
            self._meet_in_groups()
            if self.place.size > 1:
                self._carrier = threads.start(
                    self._carry_out_all, name="flexo-carry-out", failed=self._thread_failed
                )
                threads.start(self._say_late, name="flexo-say", failed=self._thread_failed)
        except Exception as error:  # what is half built must go, whatever it was
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
        store = self._shelf if self.place.size > 1 else None
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
        groups.connect_gpus(GLOBAL_SET, self._gpu_before)
        self._collectives = Collectives(groups, rank)
        if self.place.size > 1:  # the first collective tells that all others have come so far, too
            groups.gloo(GLOBAL_SET).allreduce([torch.zeros(1)]).wait()

    def is_broken(self) -> bool:
        """Whether somebody is gone, or it was closed."""
        return bool(self._broken)

    # --- asked by the script's threads ----------------------------------------------------------------------

    def submit(self, work: Work) -> None:
        """Ask for it. Raises ValueError if its name is outstanding, RuntimeError if all this is broken."""
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
        """Until it is done. Raises its error: RuntimeError, or Disagreement."""
        began = time.perf_counter()
        self._say(waits=True)
        try:
            if not work.done_within(BLOCKED_AFTER_S):
                self._say(blocked_by=work)
            work.wait()
        finally:
            self.waited_s += time.perf_counter() - began

    def poll(self, work: Work) -> bool:
        """Whether it is done, well or not."""
        self._say(waits=True)
        return work.done()

    def process_sets(self) -> Mapping[int, tuple[int, ...]]:
        """Ranks in each, in ascending order, by number."""
        with self._lock:
            return dict(self._sets)

    def gpu(self) -> torch.device | None:
        """Where this rank's tensors are, if they are on a GPU and NCCL is used for them. Any thread."""
        collectives = self._collectives
        return None if collectives is None else collectives.gpu

    def courier(self) -> Courier | None:
        """Between its members; None if there is only one."""
        return None if self._groups is None or self.place.size == 1 else GlooCourier(self._groups)

    def _say(self, *, waits: bool = False, blocked_by: Work | None = None) -> None:
        """Tell rank 0 what it was not told yet, and that this rank waits."""
        with self._saying:
            with self._lock:
                if waits and not self._has_waited:
                    self._has_waited = True
                    self._unsaid.append(Waits())
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
        self._shelf.heard(key, value)

    def heard(self, heard: Heard) -> None:
        """See Listener.heard. Who is alone carries it out at once."""
        if self.place.size == 1:
            self._carry_out(heard)
        else:
            self._decided.put(heard)

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
        except Exception as failure:  # works are waited for, and nobody else carries them out
            self.break_(f"a collective failed: {failure}")
            error = RuntimeError(self._broken)  # the first reason: a peer that is gone, most often
        for work in works:
            if work is not None:
                work.finish(error)

    def _carry_out_works(self, heard: Heard, works: list[Work | None]) -> Exception | None:
        """Raises whatever fails; returns the error that all have agreed on."""
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
            self._remove_process_set(response.result, response.requests[0].root)
        else:
            assert self._collectives is not None
            self._collectives.carry_out(response, works)
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
        """All works fail, here and elsewhere, and so do builds and meetings. Any thread."""
        self._end(why)
        if self._channel is not None:
            self._channel.hang_up(why)

    def _thread_failed(self, error: Exception) -> None:
        """Without that thread works would be waited for that nobody carries out, or asks others for."""
        self.break_(f"rank {self.place.rank} failed: {error!r}")

    def _end(self, why: str) -> None:
        """Here only. The first reason counts."""
        with self._lock:
            if self._broken:
                return
            self._broken = why
            works, self._outstanding = list(self._outstanding.values()), {}
            groups = self._groups
        self._shelf.close(why)
        try:
            if groups is not None:
                groups.break_connections()
        finally:  # whatever it comes to, nobody may wait for ever
            for event in (self._here, self._all_left, self._something_unsaid):
                event.set()
            self._decided.put(None)
            for work in works:
                work.finish(RuntimeError(why))

    def settle(self) -> None:
        """After its end: wait until nothing writes into anybody's tensors any more."""
        if self._carrier is not None:
            self._carrier.join(python_layer.gloo_timeout_s())

    def close(self) -> None:
        """Go in order: wait, not for long, until all others are to go, too. Nothing may be outstanding."""
        if self._channel is not None and not self._broken:
            self._say()
            self._channel.leave()
            self._all_left.wait(FAREWELL_S)
        self._end("it was closed")
        if self._channel is not None:
            self._channel.close()
        if self._groups is not None:
            self._groups.close()
        self.settle()
        self._collectives = None  # its buffers would stay until cycles of objects are looked for
        _live.discard(self)

    def forget(self) -> None:
        """In a process that was forked: close its copies of the connections, which would keep them open."""
        if self._channel is not None:
            self._channel.forget()


def _fusion_bytes() -> int:
    text = os.environ.get("HOROVOD_FUSION_THRESHOLD", "")
    return int(text) if text.isdecimal() else FUSION_BYTES


def _forget_all() -> None:
    for communicator in list(_live):
        communicator.forget()


os.register_at_fork(after_in_child=_forget_all)
