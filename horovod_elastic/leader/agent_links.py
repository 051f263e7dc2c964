"""The agents of a job as their leader reaches them, and through them their workers."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import dataclass

from flexo_protos.v1 import workers_pb2

AgentOutbox = queue.SimpleQueue[workers_pb2.ToAgent | None]


@dataclass
class AgentLink:
    """An agent: connected, or (`lost_at` set) just disconnected and expected back."""

    outbox: AgentOutbox
    base: bool
    job_id: int
    holder: str
    heard_at: float
    node: str = ""
    gpus: tuple[int, ...] = ()
    """As the cluster numbers them on the node, in the order of slots."""
    lost_at: float | None = None
    leaving: bool = False

    @property
    def connected(self) -> bool:
        """Whether its stream stands."""
        return self.lost_at is None


class AgentLinks:
    """All agents by name, and where each worker lives."""

    def __init__(self) -> None:
        self.by_name: dict[str, AgentLink] = {}
        self.homes: dict[str, str] = {}
        """The agent of every living worker."""

    def of(self, name: str, outbox: AgentOutbox) -> AgentLink | None:
        """The link of this agent, if it is still the one with this outbox."""
        link = self.by_name.get(name)
        return link if link is not None and link.outbox is outbox else None

    # --- who is here -----------------------------------------------------------------------------------

    def here(self) -> set[str]:
        """Those that are connected."""
        return {name for name, link in self.by_name.items() if link.connected}

    def base_is_here(self) -> bool:
        """Whether any agent of the base is connected."""
        return any(link.base and link.connected for link in self.by_name.values())

    def base_is_heard(self, within_s: float, now: float) -> bool:
        """Whether any agent of the base is connected and has said something that long ago at most."""
        return any(
            link.base and link.connected and now <= link.heard_at + within_s for link in self.by_name.values()
        )

    def satellites(self) -> set[str]:
        """Those that are not of the base."""
        return {name for name, link in self.by_name.items() if not link.base}

    def workers_of(self, name: str) -> list[str]:
        """The living workers of this agent."""
        return [worker_id for worker_id, home in self.homes.items() if home == name]

    def successor_of(self, leader: str) -> str:
        """An agent that could lead after `leader`: one of the base if there is any. "": nobody."""
        candidates = [
            (not link.base, name)
            for name, link in self.by_name.items()
            if name != leader and link.connected and not link.leaving
        ]
        return min(candidates)[1] if candidates else ""

    # --- telling them ----------------------------------------------------------------------------------

    def tell(self, agent: str, message: workers_pb2.ToAgent) -> None:
        """Silent about one that is gone."""
        if link := self.by_name.get(agent):
            link.outbox.put(message)

    def tell_all(self, message: workers_pb2.ToAgent) -> None:
        """Those too that are expected back."""
        for link in self.by_name.values():
            link.outbox.put(message)

    def tell_connected(self, message: workers_pb2.ToAgent) -> None:
        """Those whose streams stand."""
        for link in self.by_name.values():
            if link.connected:
                link.outbox.put(message)

    def tell_worker(self, worker_id: str, message: workers_pb2.ToWorker) -> None:
        """Through its agent; silent about one that is gone."""
        tell = workers_pb2.TellWorker(worker_id=worker_id, message=message)
        self.tell(self.homes.get(worker_id, ""), workers_pb2.ToAgent(tell_worker=tell))

    def tell_workers(self, worker_ids: Iterable[str], message: workers_pb2.ToWorker) -> None:
        """Each through its agent."""
        for worker_id in worker_ids:
            self.tell_worker(worker_id, message)

    def step_down(self) -> None:
        """Tell all that somebody else leads from now on, and end their streams."""
        for link in self.by_name.values():
            link.outbox.put(workers_pb2.ToAgent(stepped_down=workers_pb2.SteppedDown()))
            link.outbox.put(None)
