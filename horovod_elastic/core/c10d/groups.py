"""The process groups of one communicator: Gloo's for every process set, NCCL's where tensors are on a GPU.

A group is an object of torch.distributed, made directly and never by init_process_group. So the groups do not
touch the script's use of torch.distributed or the groups of another generation.

Gloo notices a dead peer at once, but only on the ranks that exchange data with that peer at the moment. The
other ranks would wait for the timeout. So a caller that knows of the death breaks the group's connections,
here and thus for the peers. The group's sockets in this process are known, not guessed. The members tell each
other where they listen, and every connection of the group has such an address at one of its ends.

Only Gloo's listening socket itself is identified as the socket that is new after Gloo was told to listen. If
something else in this process begins to listen within that millisecond, on a socket that child programs would
inherit, then Gloo's socket is made anew.

Gloo authenticates nobody. It takes a connection that names a rank not yet connected for that rank. So each
member proves to each other member, over the new group, that it has read the store, which only members can
read. If a stranger has taken a member's place, the group is not built.

A connection that is still being established to a machine that does not answer at all cannot be broken. A
build that hangs there ends at its timeout. So does a build whose store does not give up.

NCCL's groups are made and connected for the first tensor on a GPU. If the previous generation had such
tensors, this is done before the switch. Then the first step after the switch does not wait for it. While NCCL
connects, nothing interrupts it, abort() neither (seen with NCCL 2.28.9 of PyTorch 2.11): it waits until all
members have come or have died. So it connects in a thread of its own, for which nobody waits after a break.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import struct
import threading
from collections import Counter
from concurrent import futures
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from horovod_elastic import threads
from horovod_elastic.core import connections
from horovod_elastic.core.c10d import torchs_own
from horovod_elastic.core.connections import Endpoint

TRIES = 3
"""The number of attempts to make a listening socket that can be identified."""
_ON_GPUS, _IN_MEMORY = b"on GPUs", b"in memory"
_PROOF_BYTES = 32
LOOK_S = 0.05
"""Seconds between two looks at whether a group that NCCL connects was broken."""
KNOCK_S = 1.0
"""Timeout in seconds of a connection to this process's own Gloo. Gloo accepts at once, unless its thread is
stopped."""
_MAKING_A_DEVICE = threading.Lock()
"""A lock of the process, because another communicator may be built at the same time."""


class Groups:
    """The groups of one communicator (see the module). All members make the same calls in the same order.

    Only break_connections() may be called by any thread.
    """

    def __init__(self, rank: int, size: int, address: str, store: Any | None, timeout_s: float) -> None:
        """`address`: the IP address to listen on. `store`: shared by all ranks; a single rank needs none."""
        if store is None and size > 1:
            raise ValueError(f"{size} ranks need a store to meet in")
        self._rank = rank
        self._size = size
        self._address = address
        self._store = store
        self._timeout = timedelta(seconds=timeout_s)
        self._members: dict[int, tuple[int, ...]] = {}
        self._gloo: dict[int, _Gloo] = {}
        self._nccl: dict[tuple[int, torch.device], Any] = {}
        self._built: Counter[tuple[int, ...]] = Counter()
        self._lock = threading.Lock()
        self._building: _Gloo | None = None
        self._broken = ""

    def build(self, process_set: int, members: tuple[int, ...]) -> None:
        """Make the set's Gloo group, together with all its members. Other ranks only record the set.

        Raises RuntimeError if the group cannot be made, and soon after break_connections().
        """
        self.check_whole()
        if self._rank in members and len(members) > 1:
            self._build_gloo(process_set, members)
        self._members[process_set] = members

    def remove(self, process_set: int) -> None:
        """Close the set's groups. Raises KeyError if the set was never built."""
        del self._members[process_set]
        for key in [key for key in self._nccl if key[0] == process_set]:
            self._nccl.pop(key).abort()
        with self._lock:
            gloo = self._gloo.pop(process_set, None)
        if gloo is not None:
            gloo.close()

    def members(self, process_set: int) -> tuple[int, ...]:
        """The ranks of the set's members, in ascending order. Raises KeyError if the set was never built."""
        return self._members[process_set]

    def gloo(self, process_set: int) -> Any:
        """The set's ProcessGroupGloo. Its ranks are indices into `members`. KeyError if there is none."""
        self.check_whole()
        return self._gloo[process_set].group

    def has_nccl(self) -> bool:
        """Whether a group of NCCL was made. It neither goes on without a rank that dies nor notices it."""
        return bool(self._nccl)

    def nccl(self, process_set: int, device: torch.device) -> Any:
        """The set's ProcessGroupNCCL for this GPU. The first call makes it, by all members at the same time.

        Raises RuntimeError if the members cannot be connected, and soon after break_connections().
        """
        with self._lock:  # so that the group is broken with the others, or not made
            self.check_whole()
            key = (process_set, device)
            if key in self._nccl:
                return self._nccl[key]
            group = self._nccl[key] = self._new_nccl(process_set)
        try:
            self._connect(group, device)
        except RuntimeError:
            with self._lock:
                self._nccl.pop(key, None)
            raise
        return group

    def _connect(self, group: Any, device: torch.device) -> None:
        """Connect the members' GPUs. Raises RuntimeError if that fails, and soon after a break."""
        connected: Future[None] = Future()

        def connect() -> None:
            group.eager_connect_single_device(device)
            if self._broken:  # too late: nobody waits any more
                group.abort()
            connected.set_result(None)

        threads.start(connect, name="nccl", failed=connected.set_exception)
        while not futures.wait([connected], LOOK_S).done and not self._broken:
            pass
        self.check_whole()
        connected.result()

    def connect_gpus(self, process_set: int, gpu: torch.device | None) -> None:
        """Connect the set's GPUs, together with all its members, if the first member has a `gpu` in use.

        `gpu`: the GPU of this rank's tensors in the previous generation; None if they were on no GPU, or the
        rank is new. Raises RuntimeError if a member has no GPU, or a GPU cannot be connected.
        """
        self.check_whole()
        members = self._members[process_set]
        if self._rank not in members or len(members) == 1:
            return
        store = self._place_in_store("gpus", members)
        if self._rank == members[0]:
            store.set("tensors", _IN_MEMORY if gpu is None else _ON_GPUS)
        elif store.get("tensors") == _ON_GPUS:
            gpu = gpu or _own_gpu(members[0])
        else:
            gpu = None
        if gpu is not None:
            self.nccl(process_set, gpu)

    def break_connections(self) -> None:
        """Make all collectives and builds fail soon, here and at the peers. Any thread may call it."""
        with self._lock:
            self._broken = self._broken or "its connections were broken"
            whole, on_gpus = list(self._gloo.values()), list(self._nccl.values())
            building = self._building
        for gloo in whole:
            gloo.shut_down()
        if building is not None:
            building.shut_down_unfinished()
        for group in on_gpus:
            with contextlib.suppress(RuntimeError):  # the group has failed already
                group.abort()

    def close(self) -> None:
        """Close all groups. Peers still get the data that was sent before; threads that wait here fail."""
        self.break_connections()
        for process_set in list(self._members):
            self.remove(process_set)

    def _build_gloo(self, process_set: int, members: tuple[int, ...]) -> None:
        gloo = _Gloo(self._address)
        try:
            with self._lock:
                self.check_whole()
                self._building = gloo
            store = self._place_in_store("gloo", members)
            gloo.connect(store, members.index(self._rank), len(members), self._timeout)
            with self._lock:
                self.check_whole()
                self._gloo[process_set] = gloo
        except Exception:
            gloo.close()
            self.check_whole()  # the reason for a break says more than Gloo's error
            raise
        finally:
            self._building = None

    def check_whole(self) -> None:
        """Raise RuntimeError if the connections were broken."""
        if self._broken:
            raise RuntimeError(f"the communicator cannot be used: {self._broken}")

    def _place_in_store(self, kind: str, members: tuple[int, ...]) -> Any:
        """A part of the store for these members and this build only.

        A counter keeps builds apart, because numbers of process sets may be used again.
        """
        self._built[members] += 1
        name = f"{kind}.{'-'.join(map(str, members))}.{self._built[members]}"
        return dist.PrefixStore(name, self._store)

    def _new_nccl(self, process_set: int) -> Any:
        # By default NCCL's watchdog ends the whole process when a collective fails or takes too long.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        members = self._members[process_set]
        options = dist.ProcessGroupNCCL.Options()
        torchs_own.set_timeout(options, self._timeout)
        store = self._place_in_store("nccl", members)
        return dist.ProcessGroupNCCL(store, members.index(self._rank), len(members), options)


class _Gloo:
    """One group of Gloo with its own listening socket and thread."""

    def __init__(self, address: str) -> None:
        self.group: Any = None
        self._device, self._here = _listen(address)
        self._size = 0
        self._others: set[Endpoint] = set()
        self._connections: connections.Sockets = {}

    def connect(self, store: Any, place: int, size: int, timeout: timedelta) -> None:
        """Connect with the other members.

        Raises RuntimeError if a member does not come in time, or a stranger comes in its place.
        """
        self._size = size
        self._learn_endpoints(store, place, timeout)
        self.group = torchs_own.gloo_group(store, place, size, self._device, timeout)
        # The device is freed with the group, which lets other threads run. Freed alone, it stops all Python
        # for 10 ms.
        self._device = None
        self._connections = connections.among(self._here, self._others)
        self._meet_members(store, place)

    def _meet_members(self, store: Any, place: int) -> None:
        """Check that each peer has read the secrets in the store. Raises RuntimeError if one has not."""
        names = [_secret(each) for each in range(self._size)]
        if not store.check(names):
            return  # a member runs an earlier flexo: the job has outlived an update
        known = [bytes(store.get(name)) for name in names]
        said = b"".join(_proof(known, place, other) for other in range(self._size))
        wanted = b"".join(_proof(known, other, place) for other in range(self._size))
        told = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        heard = torch.zeros_like(told)
        try:
            self.group.alltoall_base(heard, told, [], []).wait()
        except RuntimeError as error:
            raise RuntimeError(f"a member, or who is connected in its place, is silent: {error}") from error
        if bytes(heard.tolist()) != wanted:
            raise RuntimeError("somebody who is no member has connected in the place of one")

    def _learn_endpoints(self, store: Any, place: int, timeout: timedelta) -> None:
        """Learn where the other members listen. Gloo learns these endpoints too, but does not reveal them."""
        store.set(
            _secret(place), secrets.token_bytes(_PROOF_BYTES)
        )  # first: a member whose endpoint is in the store has a secret there, too
        store.set(_key(place), f"{self._here[0]} {self._here[1]}")
        others = [_key(other) for other in range(self._size) if other != place]
        store.wait(others, timeout)
        for key in others:
            address, port = store.get(key).decode().split()
            self._others.add((address, int(port)))

    def shut_down(self) -> None:
        """Break the group's connections. Data sent before still arrives."""
        connections.shut_down(self._connections)

    def shut_down_unfinished(self) -> None:
        """Break the connections that exist already, and stand in for members that did not come.

        Gloo waits until its timeout for a member that never connects. Shutting the listening socket down
        would end the process. So this method connects in the place of each member and closes the connection
        again.
        """
        connections.shut_down(connections.among(self._here, frozenset(self._others)))
        family = socket.AF_INET6 if ":" in self._here[0] else socket.AF_INET
        for place in range(self._size):
            with contextlib.suppress(OSError), socket.socket(family) as knocking:
                knocking.settimeout(KNOCK_S)
                knocking.connect(self._here)
                knocking.sendall(struct.pack("@n", place))

    def close(self) -> None:
        """Break the connections and free the group, which without connections waits for nothing."""
        self.shut_down()
        self.group = self._device = None


def _own_gpu(first: int) -> torch.device:
    """The GPU of a rank whose tensors were on no GPU so far. Raises RuntimeError if the rank can use none.

    `first`: the rank of the set's first member, for the error's text.
    """
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        raise RuntimeError(f"rank {first} has tensors on a GPU, and this rank can use none")
    return torch.device("cuda", torch.cuda.current_device())


def _proof(known: list[bytes], teller: int, hearer: int) -> bytes:
    """The proof that member `teller` sends to member `hearer`. Only a reader of the store can make it."""
    return hashlib.sha256(b"%d %d " % (teller, hearer) + known[teller] + known[hearer]).digest()


def _secret(place: int) -> str:
    """The store's key of the secret that a member has made up for this group."""
    return f"secret.{place}"


def _key(place: int) -> str:
    """The store's key of the endpoint at which a member listens."""
    return f"listens.{place}"


def _listen(address: str) -> tuple[Any, Endpoint]:
    """A Gloo device that listens on this address only, and its endpoint."""
    for _ in range(TRIES):
        with _MAKING_A_DEVICE:
            before = connections.open_now()
            device = dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
            new = connections.listening_since(before)
        if len(new) == 1:
            return device, new[0]
    raise RuntimeError(f"cannot tell where Gloo listens on {address}: {new}")
