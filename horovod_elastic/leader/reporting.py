"""The leader's reports to flexod, and their times. Runs in the leader's thread, except for `hello`."""

from __future__ import annotations

import os

from flexo_protos import lease_place
from flexo_protos.resources import Resources, rounded_up, to_message
from flexo_protos.v1 import jobs_pb2
from horovod_elastic import wire
from horovod_elastic.job_plan import JobPlan
from horovod_elastic.leader.accounting import Accounting
from horovod_elastic.leader.assigned_sums import AssignedSums
from horovod_elastic.leader.daemon_link import DaemonLink
from horovod_elastic.leader.gpu_uses import gpu_uses
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.oversight import Oversight
from horovod_elastic.leader.satellite_manager import SatelliteManager
from horovod_elastic.leader.satellite_sums import SatelliteSums
from horovod_elastic.leader.succession import LeaseHandle
from horovod_elastic.release import release

POOLED_INTERVAL_S = 1.0
"""Interval of reports of a job that uses pool Aggregators, or may: flexod has to notice soon what they
cost."""
ATTACH_TO_FLEXOD_BOUND_S = 10.0
"""Longest time that a new leader collects knowledge before it reports to flexod."""


class Reporter:
    """See the module. `inherited`: another leader led this job before. `since`: time when this one began.
    `script`: see try_batches.script_digest.
    """

    def __init__(
        self,
        plan: JobPlan,
        lease: LeaseHandle,
        membership: Membership,
        satellites: SatelliteManager,
        oversight: Oversight,
        sums: AssignedSums,
        satellite_sums: SatelliteSums,
        accounting: Accounting,
        *,
        inherited: bool,
        since: float,
        script: str = "",
    ) -> None:
        self._plan = plan
        self._script = script
        self._lease = lease
        self._membership = membership
        self._satellites = satellites
        self._oversight = oversight
        self._sums = sums
        self._satellite_sums = satellite_sums
        self._accounting = accounting
        self._inherited = inherited
        self._since = since
        self._link: DaemonLink | None = None
        self._last: jobs_pb2.Report | None = None
        self._due = 0.0

    def attach(self, link: DaemonLink) -> None:
        """Report through `link`. The first report starts the link."""
        self._link = link

    def tick(self, now: float) -> None:
        """Report when something has changed, and at the interval that flexod has set."""
        if self._link is None or not self._oriented(now):
            return
        report = self._present(now)
        changed = _without_progress(report) != _without_progress(self._last)
        if changed or now >= self._due:
            interval_s = self._link.report_interval_s
            self._due = now + (min(POOLED_INTERVAL_S, interval_s) if self._sums.of_pool else interval_s)
            self._last = report
            self._link.start()
            self._link.send(jobs_pb2.FromLeader(report=report))

    def send(self, message: jobs_pb2.FromLeader) -> None:
        """Send another message, if there is a link to flexod."""
        if self._link is not None:
            self._link.send(message)

    def close(self, why: str) -> None:
        """Say goodbye to flexod, because the job is over."""
        if self._link is not None:
            self._link.close(why)

    def hang_up(self) -> None:
        """End the stream to flexod, because another leader reports from now on."""
        if self._link is not None:
            self._link.hang_up()

    def hello(self) -> jobs_pb2.Hello:
        """The hello for flexod. The link's thread calls it; a report is never changed once it is made."""
        base = self._plan.base
        return jobs_pb2.Hello(
            job_id=wire.job_number(base.job_id),
            restart_count=base.restart_count,
            workers=jobs_pb2.WorkerRange(min=base.minimum, max=base.maximum),
            shape=_for_older_flexods(base.shape),
            worker=to_message(base.shape),
            base_nodes=list(dict.fromkeys(node.host for node in base.nodes)),
            report=self._last or jobs_pb2.Report(),
            flexo_version=release(),
            term=self._lease.term,
            run=lease_place.parse(self._plan.leases).run,
            unit=base.unit if base.unit > 1 else 0,
            opportunistic=base.opportunistic,
            reserves=self._sums.reserves if self._sums.wanted else 0,
            script=self._script,
        )

    def _oriented(self, now: float) -> bool:
        """Whether a leader that has taken over knows enough to speak for the job."""
        if self._last is not None or not self._inherited:
            return True
        knows_state = self._membership.generation > 0 or self._membership.paused
        known = self._satellites.complete and knows_state
        return known or now > self._since + ATTACH_TO_FLEXOD_BOUND_S

    def _present(self, now: float) -> jobs_pb2.Report:
        cost = self._accounting.told()
        return jobs_pb2.Report(
            workers=self._membership.size,
            generation=self._membership.generation,
            batches_committed=self._membership.commits,
            progress=self._membership.progress,
            scalable=self._membership.scalable
            and not self._membership.finishing
            and not self._oversight.unscalable_why,
            changing=self._membership.changing,
            pending_command=self._oversight.pending_command,
            unscalable_why=self._oversight.unscalable_why or self._membership.fixed_why,
            satellites=self._satellites.report(),
            gpu_uses=self._gpu_uses(),
            paused=self._membership.paused,
            aggregation=self._sums.report(self._nodes(), self._satellite_sums.wanted, now),
            resizes=cost.resizes,
            paused_s=cost.paused_s,
            tried=self._oversight.tried,
        )

    def _nodes(self) -> int:
        """Nodes with workers of the present generation."""
        return len({worker.agent for worker in self._membership.present()})

    def _gpu_uses(self) -> list[jobs_pb2.GpuUse]:
        """How the job's GPU is used, if the job lets another one in."""
        base = self._plan.base
        shares = base.cohost and base.workers == 1
        return gpu_uses(base.nodes[0].host, base.job_id, os.environ) if shares else []


def _without_progress(report: jobs_pb2.Report | None) -> bytes:
    if report is None:
        return b"none"
    copy = jobs_pb2.Report()
    copy.CopyFrom(report)
    copy.batches_committed = 0
    copy.progress = 0.0
    copy.paused_s = 0.0  # workers tell their parts of a pause one after the other
    if copy.HasField("aggregation"):
        copy.aggregation.iterations = 0
        copy.aggregation.iteration_s = 0.0
        copy.aggregation.busy = 0.0
    for use in copy.gpu_uses:  # its figures waver, and who is there counts
        use.utilization = use.slowdown = use.opportunistic_share = 0.0
        use.peak_mib = 0
    return copy.SerializeToString()


def _for_older_flexods(shape: Resources) -> jobs_pb2.WorkerShape:
    return jobs_pb2.WorkerShape(
        gpus=rounded_up(shape.gpus, 1),
        cpus=shape.cpus,
        memory_mib=shape.memory_mib,
        gpu_type=shape.gpu_type,
    )
