"""The process groups of one communicator: Gloo's for every process set, NCCL's where tensors are on a GPU.

A group is an object of torch.distributed, made directly and never by init_process_group: what the script does
with torch.distributed, and the groups of another generation, are not touched.

Gloo notices a peer that died at once, but only the ranks that talk with that peer at the moment; the others
would wait until the time is up. So whoever knows better breaks the group's connections, here and thus for the
peers. Which of the process's sockets these are is known and not guessed: the members tell each other where
they listen, and every connection of the group has such an address at one of its ends.

Only Gloo's listening socket itself is told by what is new while it is made. If something else in this process
begins to listen within that millisecond, on a socket that programs would inherit, then it is made anew.

Gloo authenticates nobody. Whoever connects to its listening socket, and names a rank that has not connected
yet, is that rank. So each member proves to each other one, over the new group, that it has read the store,
which only members can read. If a stranger has taken a member's place, the group is not built.

What cannot be broken is a connection that is still being asked for at a machine that does not answer at all:
a build that hangs in that ends when its time is up. So does one whose store does not give up.

NCCL's groups are made when first there is a tensor on a GPU. Where the generation before had such tensors,
they are connected before the switch, so that the first step after it does not wait for that.
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
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from horovod_elastic.core import connections
from horovod_elastic.core.connections import Endpoint

TRIES = 3
"""How often a listening socket is made before it is given up as ambiguous."""
_ON_GPUS, _IN_MEMORY = b"on GPUs", b"in memory"
_PROOF_BYTES = 32
KNOCK_S = 1.0
"""Gloo accepts at once, unless its thread is stopped."""
_MAKING_A_DEVICE = threading.Lock()
"""Of the process: another communicator may be built at the same time."""


class Groups:
    """See the module. All members make the same calls in the same order; only breaking is for any thread."""

    def __init__(self, rank: int, size: int, address: str, store: Any | None, timeout_s: float) -> None:
        """`address`: the IP address to listen on. `store`: where all ranks meet; a single rank needs none."""
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
        """Make the set's group, at once with all its members; elsewhere it is only taken note of.

        Raises RuntimeError if it cannot be made, and soon after break_connections().
        """
        self.check_whole()
        if self._rank in members and len(members) > 1:
            self._build_gloo(process_set, members)
        self._members[process_set] = members

    def remove(self, process_set: int) -> None:
        """Give the set's groups back. KeyError if it was never built."""
        del self._members[process_set]
        for key in [key for key in self._nccl if key[0] == process_set]:
            self._nccl.pop(key).abort()
        with self._lock:
            gloo = self._gloo.pop(process_set, None)
        if gloo is not None:
            gloo.close()

    def members(self, process_set: int) -> tuple[int, ...]:
        """Their ranks, in ascending order. KeyError if the set was never built."""
        return self._members[process_set]

    def gloo(self, process_set: int) -> Any:
        """The set's ProcessGroupGloo: ranks in it are indices into members. KeyError if it has none."""
        self.check_whole()
        return self._gloo[process_set].group

    def nccl(self, process_set: int, device: torch.device) -> Any:
        """The set's ProcessGroupNCCL for this GPU, made at the first call, by all members at once.

        It connects its members in the first collective, unless that was done before.
        """
        with self._lock:  # so that it is broken with the others, or not made
            self.check_whole()
            key = (process_set, device)
            if key not in self._nccl:
                self._nccl[key] = self._new_nccl(process_set)
            return self._nccl[key]

    def connect_gpus(self, process_set: int, gpu: torch.device | None) -> None:
        """Connect the set's GPUs, with all its members at once, if the first member has a `gpu` in use.

        `gpu`: where this rank's tensors were in the generation before; None: on no GPU, or it is new. Raises
        RuntimeError if a member has no GPU, or one cannot be connected.
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
            self.nccl(process_set, gpu).eager_connect_single_device(gpu)
            self.check_whole()

    def break_connections(self) -> None:
        """Whatever waits in a collective or builds a group fails soon, here and at the peers. Any thread."""
        with self._lock:
            self._broken = self._broken or "its connections were broken"
            whole, on_gpus = list(self._gloo.values()), list(self._nccl.values())
            building = self._building
        for gloo in whole:
            gloo.shut_down()
        if building is not None:
            building.shut_down_unfinished()
        for group in on_gpus:
            with contextlib.suppress(RuntimeError):  # it has failed already
                group.abort()

    def close(self) -> None:
        """Give everything back. What peers still have to read reaches them; what waits here fails."""
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
            self.check_whole()  # that it was broken says more than what Gloo saw of it
            raise
        finally:
            self._building = None

    def check_whole(self) -> None:
        """Raises RuntimeError once its connections were broken."""
        if self._broken:
            raise RuntimeError(f"the communicator cannot be used: {self._broken}")

    def _place_in_store(self, kind: str, members: tuple[int, ...]) -> Any:
        """Where only these members meet, and only this time: numbers of process sets may be used again."""
        self._built[members] += 1
        name = f"{kind}.{'-'.join(map(str, members))}.{self._built[members]}"
        return dist.PrefixStore(name, self._store)

    def _new_nccl(self, process_set: int) -> Any:
        # By default NCCL's watchdog ends the whole process when a collective fails or takes too long.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        members = self._members[process_set]
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
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
        """Meet the other members. Raises RuntimeError if one does not come in time."""
        self._size = size
        self._learn_endpoints(store, place, timeout)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [self._device]
        options._timeout = timeout
        options._threads = 1  # collectives of one group are carried out one after the other
        self.group = dist.ProcessGroupGloo(store, place, size, options)
        # To go with the group, which lets others run: a device by itself stops all Python for 10 ms.
        self._device = None
        self._connections = connections.among(self._here, self._others)
        self._meet_members(store, place)

    def _meet_members(self, store: Any, place: int) -> None:
        """Raises RuntimeError unless who is connected in each member's place knows what that member knows."""
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
        """Where the others listen. Gloo asks for it too, but does not tell."""
        store.set(
            _secret(place), secrets.token_bytes(_PROOF_BYTES)
        )  # first: who is found to listen has put it
        store.set(_key(place), f"{self._here[0]} {self._here[1]}")
        others = [_key(other) for other in range(self._size) if other != place]
        store.wait(others, timeout)
        for key in others:
            address, port = store.get(key).decode().split()
            self._others.add((address, int(port)))

    def shut_down(self) -> None:
        """Break its connections. What was sent already still arrives."""
        connections.shut_down(self._connections)

    def shut_down_unfinished(self) -> None:
        """Break the connections that are there already, and stand in for members that did not come.

        Gloo waits for a member that is to connect and never does until its time is up, and shutting the
        listening socket down would end the process. So somebody connects, in the place of each, and goes.
        """
        connections.shut_down(connections.among(self._here, frozenset(self._others)))
        family = socket.AF_INET6 if ":" in self._here[0] else socket.AF_INET
        for place in range(self._size):
            with contextlib.suppress(OSError), socket.socket(family) as knocking:
                knocking.settimeout(KNOCK_S)
                knocking.connect(self._here)
                knocking.sendall(struct.pack("@n", place))

    def close(self) -> None:
        """Without its connections the group has nothing to wait for when it goes."""
        self.shut_down()
        self.group = self._device = None


def _own_gpu(first: int) -> torch.device:
    """Of a rank whose tensors were on none so far. Raises RuntimeError where there is none."""
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        raise RuntimeError(f"rank {first} has tensors on a GPU, and this rank can use none")
    return torch.device("cuda", torch.cuda.current_device())


def _proof(known: list[bytes], teller: int, hearer: int) -> bytes:
    """What one member tells another one over their connection, and nobody else can."""
    return hashlib.sha256(b"%d %d " % (teller, hearer) + known[teller] + known[hearer]).digest()


def _secret(place: int) -> str:
    """In the store, of what a member has made up for this group."""
    return f"secret.{place}"


def _key(place: int) -> str:
    """In the store, of where a member listens."""
    return f"listens.{place}"


def _listen(address: str) -> tuple[Any, Endpoint]:
    """A device of Gloo that listens on this address only, and where it does."""
    for _ in range(TRIES):
        with _MAKING_A_DEVICE:
            before = connections.open_now()
            device = dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
            new = connections.listening_since(before)
        if len(new) == 1:
            return device, new[0]
    raise RuntimeError(f"cannot tell where Gloo listens on {address}: {new}")
