"""The leader's streams to the agents of its job, and through the agents to the workers."""

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
    """The GPUs, as the cluster numbers them on the node, in the order of slots."""
    lost_at: float | None = None
    leaving: bool = False
    only_sums: bool = False
    """Whether it is a satellite's agent without workers, which never leads."""
    dismissed: bool = False
    """Whether the leader has dismissed the agent, which is not expected back then."""

    @property
    def connected(self) -> bool:
        """Whether the agent's stream is open."""
        return self.lost_at is None


class AgentLinks:
    """All agents by name, and the agent of each worker."""

    def __init__(self, *, of_base: bool = False) -> None:
        self._of_base = of_base
        self.by_name: dict[str, AgentLink] = {}
        self.homes: dict[str, str] = {}
        """The agent of every living worker."""

    def of(self, name: str, outbox: AgentOutbox) -> AgentLink | None:
        """The link of this agent, if the link still has this outbox; else None."""
        link = self.by_name.get(name)
        return link if link is not None and link.outbox is outbox else None

    # --- who is here -----------------------------------------------------------------------------------

    def here(self) -> set[str]:
        """Names of the agents that are connected."""
        return {name for name, link in self.by_name.items() if link.connected}

    def base_is_here(self) -> bool:
        """Whether any agent of the base is connected."""
        return any(link.base and link.connected for link in self.by_name.values())

    def base_is_heard(self, within_s: float, now: float) -> bool:
        """Whether any agent of the base is connected and has sent a message within the last `within_s`."""
        return any(
            link.base and link.connected and now <= link.heard_at + within_s for link in self.by_name.values()
        )

    def satellites(self) -> set[str]:
        """Names of the agents that are not of the base."""
        return {name for name, link in self.by_name.items() if not link.base}

    def workers_of(self, name: str) -> list[str]:
        """The living workers of this agent."""
        return [worker_id for worker_id, home in self.homes.items() if home == name]

    def successor_of(self, leader: str) -> str:
        """An agent that can lead after `leader`, one of the base if possible; "" if there is none.

        Only the base leads a job whose state it keeps (`of_base`).
        """
        candidates = [
            (not link.base, name)
            for name, link in self.by_name.items()
            if name != leader and link.connected and not link.leaving and self._may_lead(link)
        ]
        return min(candidates)[1] if candidates else ""

    def _may_lead(self, link: AgentLink) -> bool:
        return link.base or not (self._of_base or link.only_sums)

    # --- telling them ----------------------------------------------------------------------------------

    def tell(self, agent: str, message: workers_pb2.ToAgent) -> None:
        """Send an agent a message. An agent that is gone is ignored."""
        if link := self.by_name.get(agent):
            link.outbox.put(message)

    def tell_all(self, message: workers_pb2.ToAgent) -> None:
        """Send all agents a message, including those that are expected back."""
        for link in self.by_name.values():
            link.outbox.put(message)

    def tell_connected(self, message: workers_pb2.ToAgent) -> None:
        """Send a message to all agents whose streams are open."""
        for link in self.by_name.values():
            if link.connected:
                link.outbox.put(message)

    def tell_worker(self, worker_id: str, message: workers_pb2.ToWorker) -> None:
        """Send a worker a message through its agent. A worker that is gone is ignored."""
        tell = workers_pb2.TellWorker(worker_id=worker_id, message=message)
        self.tell(self.homes.get(worker_id, ""), workers_pb2.ToAgent(tell_worker=tell))

    def tell_workers(self, worker_ids: Iterable[str], message: workers_pb2.ToWorker) -> None:
        """Send each of these workers a message through its agent."""
        for worker_id in worker_ids:
            self.tell_worker(worker_id, message)

    def step_down(self) -> None:
        """Tell all agents that another leader leads from now on, and end their streams."""
        for link in self.by_name.values():
            link.outbox.put(workers_pb2.ToAgent(stepped_down=workers_pb2.SteppedDown()))
            link.outbox.put(None)
