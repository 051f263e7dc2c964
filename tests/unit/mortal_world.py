"""A flexod that is killed at one chosen instant of a story, and checks that must hold at every instant.

Every call of the controller to Slurm, to leaders and to the event store is an instant. flexod dies before the
call and loses its memory. Earlier effects stay: the queue, the partition, the event store on disk, and the
orders that leaders have heard. Leaders act on their orders a moment later.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from controller_world import BOB, SIGNER, FakeLeader, slurm_job
from lending_world import INFERENCE, LendingWorld

from flexo.control.leaders import Orders
from flexo.controller import Controller
from flexo.event_store.store import EventStore
from flexo.model.elastic import LeaderReport, SatelliteReport, SatelliteState
from flexo.model.queue import JobKey, JobState
from flexo.service.lending_setup import lending_of

CYCLE_S = 10.0
TIME_LIMIT_S = 60
RECALLED = re.compile(r"gives? back (?:its )?\d+ workers? on (\w+):")
"""Pattern of the event's text when a grant is withdrawn."""


class Killed(BaseException):
    """flexod is killed. It is a BaseException, so that no code of flexod catches it."""


class Tapped:
    """A proxy of an object that the controller calls. It passes the name of each call to `tell` first."""

    def __init__(self, inner: object, name: str, tell: Callable[[str, bool], None]) -> None:
        self._inner, self._name, self._tell = inner, name, tell

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        writes = name.startswith(("record", "set_", "add_"))
        # record() takes a cycle's events as its second argument; an empty argument writes nothing
        self._tell(f"{self._name}.{name}", writes and arguments[name == "record"] not in ((), []))
        return method(*arguments, **named)


class SlowLeader(FakeLeader):
    """A fake leader that carries out orders a moment later, as a process of its own does."""

    def __init__(self, cluster, base) -> None:
        super().__init__(cluster, base)
        self.orders: Orders | None = None
        self.dropped: Counter[str] = Counter()
        """Number of grants per node that were in earlier orders and are not in later ones."""
        self._heard: dict[str, str] = {}
        """The grants of the latest orders, and their nodes."""

    def hear(self, orders: Orders) -> None:
        self.orders = orders
        heard = {grant.grant_id: grant.node for grant in orders.grants}
        self.dropped.update(node for grant, node in self._heard.items() if grant not in heard)
        self._heard = heard

    def act(self) -> None:
        if self.orders is not None:
            orders, self.orders = self.orders, None
            super().hear(orders)

    def report(self) -> LeaderReport:
        report = super().report()
        waiting = tuple(
            SatelliteReport(
                0, grant.grant_id, grant.node, grant.workers, SatelliteState.PENDING, grant.signature
            )
            for grant in (self.orders.grants if self.orders else ())
            if grant.grant_id not in self.own
        )
        there = tuple(
            told
            if self.orders is None or told.grant_id in self._heard
            else replace(told, state=SatelliteState.LEAVING)
            for told in report.satellites
        )
        return replace(report, satellites=there + waiting)


class MortalWorld(LendingWorld):
    """Two training nodes, three inference servers, and a story in which everything happens once."""

    def __init__(self, directory, back_after_s: Mapping[int, float], dies_at: int | None = None) -> None:
        """Make a world whose flexod dies once.

        `back_after_s`: per job, the seconds from flexod's death until the job's leader connects again.
        `dies_at`: the number of the instant at which flexod dies; None: flexod lives.
        """
        self.back_after_s = back_after_s
        self.dies_at = dies_at
        self.instants: list[str] = []
        self.outside: list[object] = []
        """The state outside flexod at each instant."""
        self.written = 0
        self.lives = 0
        self.everybody: list[SlowLeader] = []
        self.away: list[tuple[float, SlowLeader]] = []
        self.expired: list[int] = []
        """Satellites that ended by their time limit although their base ran."""
        loaning = {"reclaim_s": 40.0, "preempt_within_s": 25.0, "save_within_s": 10.0, "force_within_s": 10.0}
        super().__init__(
            directory, loaning, min_resize_interval_s=0.0, time_limit_s=TIME_LIMIT_S, order="policy"
        )

    def restart(self) -> None:
        if self.lives == 0:
            super().restart()
            self.cluster.sizes = {"t1": 4, "t2": 4} | dict.fromkeys(INFERENCE, 4)
            self.event_store.close()
        self.lives += 1
        self.event_store = EventStore(self.directory / "journal.sqlite", 30)
        event_store = Tapped(self.event_store, "event_store", self._tell)
        self.controller = Controller(
            self.settings,
            Tapped(self.cluster, "slurm", self._tell),
            Tapped(self.leaders, "leaders", self._tell),
            event_store,
            clock=self.cluster.clock,
            signer=SIGNER,
            lending=lending_of(self.settings, self.event_store, None),
        )

    def _tell(self, name: str, writes: bool) -> None:
        self.instants.append(name)
        self.outside.append(self._outside())
        if len(self.instants) == self.dies_at:
            raise Killed
        self.written += writes

    def _outside(self) -> object:
        leaders = [
            (leader.key, leader.orders, tuple(leader.own)) for leader in self.leaders.attached.values()
        ]
        given_back = tuple(self.leaders.failures), tuple(self.leaders.slow), tuple(self.leaders.saved)
        return tuple(self.cluster.queue.items()), self.cluster.borrowed, leaders, given_back, self.written

    # The story.

    def live(self, cycles: int) -> None:
        for _ in range(cycles):
            try:
                self.controller.cycle()
            except Killed:
                self._die()
                self.controller.cycle()
            self.check()
            self._pass_a_cycle()

    def _die(self) -> None:
        self.event_store.close()  # a transaction is complete or absent: test_store.py kills flexod within one
        for key in list(self.leaders.attached):
            if wait_s := self.back_after_s[key.job_id]:
                self.away.append((self.cluster.now + wait_s, self.leaders.attached.pop(key)))
        self.restart()

    def _pass_a_cycle(self) -> None:
        before = dict(self.cluster.queue)
        for leader in self.everybody:
            if leader.key.job_id in before:
                leader.act()
        before = dict(self.cluster.queue)
        self.cluster.pass_time(CYCLE_S)
        for job in before.values():
            gone = job.job_id not in self.cluster.queue
            if gone and job.satellite and job.satellite.base.job_id in self.cluster.queue:
                self.expired.append(job.job_id)
        for at, leader in list(self.away):
            if at <= self.cluster.now:
                self.away.remove((at, leader))
                if leader.key.job_id in self.cluster.queue:
                    self.leaders.attached[leader.key] = leader
        self.cluster.start_inference()
        self._start_rigid()

    def _start_rigid(self) -> None:
        for job in list(self.cluster.queue.values()):
            waits = job.owner == BOB and job.state is JobState.PENDING
            if waits and self.cluster.sizes["t2"] - self.cluster.held("t2") >= job.resources.gpus:
                self.cluster.add(replace(job, state=JobState.RUNNING, nodes=("t2",), reason="None"))

    def slow_job(self, job_id: int, workers: str, node: str) -> None:
        leader = SlowLeader(self.cluster, self.cluster.base(job_id, workers, node))
        self.leaders.attached[leader.key] = leader
        self.everybody.append(leader)

    def end_job(self, job_id: int) -> None:
        """End a base job at once, so that its leader cannot end any satellite."""
        del self.cluster.queue[job_id]
        self.leaders.attached.pop(JobKey(job_id), None)
        self.away = [(at, leader) for at, leader in self.away if leader.key.job_id != job_id]

    def end(self, *job_ids: int) -> None:
        for job_id in job_ids:
            self.cluster.queue.pop(job_id, None)

    def story(self) -> None:
        self.slow_job(1, "4-12", "t1")
        self.slow_job(2, "1-4", "t2")
        self.live(3)  # servers are lent, both jobs grow
        self.cluster.add(slurm_job(7, partitions=("borrowed",), nodes=("i3",), gpus=0, cpus=1))
        self.rigid(50, 2)
        self.live(2)  # job 2 makes room for a pending job
        for number in (91, 92, 93):
            self.cluster.inference(number)
        self.live(6)  # all servers are reclaimed: satellites leave, base 7 is requeued
        self.end_job(2)
        self.live(2)  # its satellite is an orphan
        self.end(50, 91, 92, 93)
        self.live(9)  # servers are lent again, time limits extended

    # Checks that must hold at every instant.

    def forgotten(self) -> dict[tuple[int, str], int]:
        """Number of grants, by job and node, that a leader's orders lost though no event withdrew them."""
        dropped = Counter(
            {
                (leader.key.job_id, node): times
                for leader in self.everybody
                for node, times in leader.dropped.items()
            }
        )
        for event in self.event_store.events(None, 1000):
            if event.job and (withdrawn := RECALLED.match(event.text)):
                dropped[event.job.job_id, withdrawn[1]] -= 1
        return dict(+dropped)

    def check(self) -> None:
        """Assert that no GPU is promised twice."""
        satellites = [job for job in self.cluster.queue.values() if job.satellite]
        ids = [job.satellite.grant_id for job in satellites]
        assert len(ids) == len(set(ids)), "two satellites of one grant"
        promised = {
            job.satellite.grant_id: (next(iter(job.nodes or job.required_nodes)), job.resources.gpus)
            for job in satellites
        }
        for leader in self.everybody:
            for grant in leader.orders.grants if leader.orders else ():
                promised[grant.grant_id] = grant.node, grant.workers
        for node, gpus in self.cluster.sizes.items():
            others = sum(
                job.resources.gpus
                for job in self.cluster.queue.values()
                if not job.satellite and node in job.nodes and job.state is JobState.RUNNING
            )
            told = sum(workers for where, workers in promised.values() if where == node)
            assert others + told <= gpus, f"{node}: {others} GPUs in use and {told} promised of {gpus}"
