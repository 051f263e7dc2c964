"""Leaders of elastic jobs that only pretend to train. Their messages to flexod and their satellites are real.

One process runs all leaders: `python -m flexo_bench.scale.leaders FOLDER < bases.json`. The satellites sleep.
Real satellites connect to their leader; these satellites leave a file in FOLDER.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from flexo_protos.credentials import METADATA_KEY, new_authenticator
from flexo_protos.v1 import jobs_pb2 as pb
from flexo_protos.v1 import jobs_pb2_grpc as rpc
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.leader.daemon_link import ATTACH
from horovod_elastic.wire import CHANNEL_OPTIONS

BATCHES_A_SECOND = 5
_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""Options of a channel: each leader has a connection of its own, as real leaders have."""
_SHORTEST_H, _LONGEST_H = 2, 24
"""Shortest and longest running time of a job on its base alone. Further workers are as fast as the base's."""
_REPORT_S = 5.0
LOOK_S = 5.0
"""Interval at which the folder is read, once for all leaders."""
AGAIN_S = 2.0
"""Pause before a new connection after flexod has gone away."""
_COMMANDS = ThreadPoolExecutor(3)


@dataclass
class Leader:
    """One pretended leader of a job."""

    job_id: int
    node: str
    least: int
    most: int
    started_at: float
    folder: Path
    generation: int = 1
    batches: int = 0
    satellites: dict[str, pb.Satellite] = field(default_factory=dict)
    """Satellites by grant id."""
    patience: dict[str, float] = field(default_factory=dict)
    """Per grant id: the time until which Slurm may start the satellite (time.monotonic)."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock of the stream, which takes one message at a time."""

    def __post_init__(self) -> None:
        """Compute the job's work, and the work done so far on the base alone."""
        base_s = 3600.0 * (_SHORTEST_H + self.job_id % (_LONGEST_H - _SHORTEST_H + 1))
        self.work = base_s * self.least
        """The job's work, in seconds of one worker."""
        self.done = max(0.0, time.time() - self.started_at) * self.least

    def hello(self) -> pb.FromLeader:
        """The first message: identity and resources."""
        return pb.FromLeader(
            hello=pb.Hello(
                job_id=self.job_id,
                workers=pb.WorkerRange(min=self.least, max=self.most),
                shape=pb.WorkerShape(gpus=1, cpus=1),
                base_nodes=[self.node],
                report=self.state(),
            )
        )

    @property
    def workers(self) -> int:
        """Number of workers that train."""
        training = (s for s in self.satellites.values() if s.state == pb.SATELLITE_STATE_TRAINING)
        return self.least + sum(each.workers for each in training)

    def state(self) -> pb.Report:
        """The leader's report on its training."""
        return pb.Report(
            workers=self.workers,
            generation=self.generation,
            batches_committed=self.batches,
            scalable=True,
            satellites=self.satellites.values(),
            progress=min(0.99, self.done / self.work),
        )

    async def live(self, address: str) -> None:
        """Stay attached to flexod, and attach again whenever flexod comes back."""
        while True:
            try:
                await self._converse(address)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    print(f"job {self.job_id}: {error.details()}", file=sys.stderr, flush=True)
            await asyncio.sleep(AGAIN_S)

    async def _converse(self, address: str) -> None:
        async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
            credential = await asyncio.to_thread(new_authenticator().credential, ATTACH)
            call = rpc.JobServiceStub(channel).Attach(metadata=((METADATA_KEY, credential),))
            await call.write(self.hello())
            reporting = asyncio.create_task(self._report(call))
            try:
                async for message in call:
                    if message.WhichOneof("body") == "grants":
                        await self._follow(message.grants, call)
            finally:
                reporting.cancel()

    async def _report(self, call: grpc.aio.StreamStreamCall[pb.FromLeader, pb.ToLeader]) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            self.batches += round(_REPORT_S * BATCHES_A_SECOND)
            self.done += _REPORT_S * self.workers
            await self._give_up(call)
            await self._write(call, pb.FromLeader(report=self.state()))

    async def _follow(
        self, grants: pb.Grants, call: grpc.aio.StreamStreamCall[pb.FromLeader, pb.ToLeader]
    ) -> None:
        """Submit a satellite for each new grant, and cancel satellites whose grant is gone."""
        standing = {grant.grant_id for grant in grants.grants}
        for grant_id in [each for each in self.satellites if each not in standing]:
            gone = self.satellites.pop(grant_id)
            await _run("scancel", "--quiet", str(gone.slurm_job_id))
        for grant in grants.grants:
            if grant.grant_id not in self.satellites:
                await self._submit(grant)
        self.generation += 1
        await self._write(call, pb.FromLeader(report=self.state()))

    async def _give_up(self, call: grpc.aio.StreamStreamCall[pb.FromLeader, pb.ToLeader]) -> None:
        """Cancel satellites that Slurm does not start in time, as real leaders do."""
        for grant_id, satellite in list(self.satellites.items()):
            late = time.monotonic() > self.patience[grant_id]
            if late and satellite.state == pb.SATELLITE_STATE_PENDING:
                del self.satellites[grant_id]
                await _run("scancel", "--quiet", str(satellite.slurm_job_id))
                reason = pb.GrantFailed.REASON_NOT_STARTED
                failed = pb.GrantFailed(grant_id=grant_id, reason=reason, message="Priority")
                await self._write(call, pb.FromLeader(grant_failed=failed))

    async def _write(
        self, call: grpc.aio.StreamStreamCall[pb.FromLeader, pb.ToLeader], message: pb.FromLeader
    ) -> None:
        async with self.writing:
            await call.write(message)

    async def _submit(self, grant: pb.Grant) -> None:
        tag = f"flexo-satellite base={self.job_id} restart=0 grant={grant.grant_id} workers={grant.workers}"
        number = await _run(
            *("sbatch", "--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", "--output=/dev/null"),
            *(f"--nodelist={grant.node}", f"--partition={grant.partition}", f"--comment={tag}"),
            *(f"--cpus-per-task={grant.workers}", f"--gres=gpu:{grant.workers}"),
            *(f"--time={max(1, grant.time_limit_s // 60)}", f"--job-name=flexo-{self.job_id}"),
            *("--wrap", satellite_script(self.folder)),
        )
        self.patience[grant.grant_id] = time.monotonic() + grant.start_within_s
        self.satellites[grant.grant_id] = pb.Satellite(
            slurm_job_id=int(number.split(";")[0]),
            grant_id=grant.grant_id,
            node=grant.node,
            workers=grant.workers,
            state=pb.SATELLITE_STATE_PENDING,
        )


async def _run(*command: str) -> str:
    def run() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    return await asyncio.get_running_loop().run_in_executor(_COMMANDS, run)


def satellite_script(folder: Path) -> str:
    """A script that sleeps, and keeps a file in the folder while it does."""
    here = f"{shlex.quote(str(folder))}/$SLURM_JOB_ID"
    return f"trap 'rm -f {here}; exit' TERM\ntouch {here}\nsleep 86400 & wait"


def running(folder: Path) -> frozenset[int]:
    """Slurm job ids of the satellites that run."""
    return frozenset(int(file.name) for file in folder.iterdir())


async def _look(leaders: list[Leader], folder: Path) -> None:
    """Mark satellites that have started as training, and drop those that have ended."""
    while True:
        await asyncio.sleep(LOOK_S)
        present = running(folder)
        for leader in leaders:
            for grant_id, satellite in list(leader.satellites.items()):
                if satellite.slurm_job_id in present:
                    satellite.state = pb.SATELLITE_STATE_TRAINING
                elif satellite.state == pb.SATELLITE_STATE_TRAINING:
                    del leader.satellites[grant_id]


async def _main(folder: Path) -> None:
    address = daemon_address()
    assert address is not None
    leaders = [
        Leader(job_id, node, least, most, started_at, folder)
        for job_id, node, least, most, started_at in json.load(sys.stdin)
    ]
    async with asyncio.TaskGroup() as group:
        group.create_task(_look(leaders, folder))
        for leader in leaders:
            group.create_task(leader.live(address))


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
