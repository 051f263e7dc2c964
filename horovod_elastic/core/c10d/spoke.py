"""The channel of every rank but rank 0: one connection, and a thread that reads it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence

from flexo_protos.v1 import collectives_pb2 as pb
from horovod_elastic.core.c10d.channel import Listener
from horovod_elastic.core.c10d.framing import FramedConnection
from horovod_elastic.core.c10d.messages import RankNumbers, Step

CONNECT_S = 10.0


class Spoke:
    """A Channel of a rank other than 0. Raises OSError if rank 0 is not reached at `address` (host, port)."""

    def __init__(self, address: tuple[str, int], rank: int, token: str, listener: Listener) -> None:
        connection = socket.create_connection(address, timeout=CONNECT_S)
        connection.settimeout(None)
        self._line = FramedConnection(connection)
        self.own_address = self._line.own_address
        self._listener = listener
        self._numbers = RankNumbers()
        self._saying = threading.Lock()
        """A lock that keeps steps in the order in which they get their numbers."""
        try:
            self._line.send(pb.FromRank(hello=pb.RankHello(rank=rank, token=token)))
        except OSError:
            self._line.close()
            raise
        threading.Thread(target=self._listen, name="flexo-line", daemon=True).start()

    def steps(self, steps: Sequence[Step]) -> None:
        """See Channel.steps."""
        with self._saying:
            self._say(pb.FromRank(steps=self._numbers.encode(steps)))

    def put(self, key: str, value: bytes) -> None:
        """See Channel.put."""
        self._say(pb.FromRank(entries=[pb.StoreEntry(key=key, value=value)]))

    def leave(self) -> None:
        """See Channel.leave."""
        self._say(pb.FromRank(leaves=True))

    def outlive(self) -> None:
        """See Channel.outlive: rank 0 does it."""

    def hang_up(self, why: str) -> None:
        """See Channel.hang_up."""
        self._say(pb.FromRank(hangs_up=why))
        self._line.end()

    def close(self) -> None:
        """See Channel.close."""
        self._line.end()

    def forget(self) -> None:
        """See Channel.forget."""
        self._line.forget()

    def _say(self, message: pb.FromRank) -> None:
        with contextlib.suppress(OSError):  # the reading thread notices the error, too
            self._line.send(message)

    def _listen(self) -> None:
        try:
            self._listen_to_the_end()
        except Exception as error:  # any error: without this thread this rank would wait for ever
            self._listener.broken(f"what rank 0 said was not understood: {error!r}")
        finally:
            self._line.close()

    def _listen_to_the_end(self) -> None:
        while (data := self._line.receive()) is not None:
            message = pb.ToRank.FromString(data)
            self._hear(message)
            if message.broken:
                return
        self._listener.broken("the connection to rank 0 was lost")

    def _hear(self, message: pb.ToRank) -> None:
        if message.all_here:
            self._listener.all_here()
        for entry in message.entries:
            self._listener.entry(entry.key, entry.value)
        for collective in message.collectives:
            with self._saying:
                heard = self._numbers.decode(collective)
            self._listener.heard(heard)
        if message.all_left:
            self._listener.all_left()
        if message.broken:
            self._listener.broken(message.broken)
