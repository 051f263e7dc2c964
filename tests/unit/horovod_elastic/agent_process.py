"""A supervisor and its agent as processes, in a job without Slurm, for tests of agents and leaders.

See flexo_bench/local_job/agent.py; here, calls may fail where chance has it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flexo_bench.local_job.agent import run_agent
from flexo_bench.local_job.trusting import Trusting
from flexo_protos.credentials import NotAuthentic
from flexo_protos.leader_leases.lease import StoreUnavailable
from horovod_elastic.agent.agent import Agent
from horovod_elastic.agent.leader_link import LeaderLink
from horovod_elastic.agent.lease_handle import AgentLeaseHandle
from horovod_elastic.agent.supervisor import Supervisor
from horovod_elastic.agent.supervisor_link import SupervisorLink
from horovod_elastic.election.election import Election
from horovod_elastic.election.lease_grpc import GrpcLease
from horovod_elastic.leader import daemon_link
from horovod_elastic.leader.agent_links import AgentLinks
from horovod_elastic.leader.attendance import Attendance
from horovod_elastic.leader.command_executor import CommandExecutor
from horovod_elastic.leader.leader import Leader
from horovod_elastic.leader.membership.change import Changes
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.membership.staff import Staff
from horovod_elastic.leader.oversight import Oversight
from horovod_elastic.leader.reporting import Reporter
from horovod_elastic.leader.satellite_manager import SatelliteManager
from horovod_elastic.leader.succession import Succession
from horovod_elastic.leader.worker_messages import WorkerMessages
from horovod_elastic.shards import ShardServer

FAULTS_VARIABLE = "FLEXO_TEST_FAULTS"
"""A folder. A file NODE in it with a number N: the agent there raises at the Nth call of a method below."""
_FAULTY = (
    *(Agent, Leader, AgentLinks, Attendance, CommandExecutor, WorkerMessages, Succession, Reporter),
    *(
        Membership,
        Changes,
        Staff,
        SatelliteManager,
        Oversight,
        ShardServer,
        Election,
        SupervisorLink,
        LeaderLink,
    ),
    *(GrpcLease, AgentLeaseHandle),
)
_ERRORS = (RuntimeError, ValueError, KeyError, OSError, NotAuthentic, StoreUnavailable)


class Faults:
    """Raises once, where chance has it; see FAULTS_VARIABLE."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._left = 0

    def install(self) -> None:
        for each in _FAULTY:
            for name, method in list(vars(each).items()):
                if inspect.isfunction(method) and not inspect.isgeneratorfunction(method):
                    setattr(each, name, self._faulty(f"{each.__name__}.{name}", method))

    def _faulty(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            self._may_raise(name)
            return method(*args, **kwargs)

        return called

    def _may_raise(self, name: str) -> None:
        if not self._left and self._file.exists():
            self._left = int(self._file.read_text())
        if self._left:
            self._left -= 1
            if not self._left:
                self._file.rename(self._file.with_name(f"{self._file.name}-{name}"))
                raise _ERRORS[len(name) % len(_ERRORS)](f"injected into {name}")


def main(node: str, slots: int, plan: str, base: bool, again: bool, command: list[str]) -> NoReturn:
    def before() -> None:
        daemon_link.new_authenticator = Trusting  # type: ignore[assignment]
        if FAULTS_VARIABLE in os.environ:
            Faults(Path(os.environ[FAULTS_VARIABLE]) / node).install()

    run_agent(node, slots, plan, base=base, again=again, command=command, before=before)


if __name__ == "__main__":
    if sys.argv[1] != "agent":
        os.environ.update(SLURMD_NODENAME=sys.argv[1], SLURM_JOB_ID="17", FLEXO_NODE=sys.argv[1])
        sys.exit(Supervisor([sys.executable, __file__, "agent", *sys.argv[1:]], stands_still_s=6.0).run())
    node, slots, plan, base, again, *command = sys.argv[2:]
    main(node, int(slots), plan, base == "base", again == "again", command)
