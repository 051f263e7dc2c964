"""A supervisor and its agent as processes, in a job without Slurm, for tests of agents and leaders.

Slurm's answers and MUNGE are stand-ins; streams, election, processes and signals are real.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from trusting import Trusting

from flexo_protos.credentials import NotAuthentic
from flexo_protos.leader_leases.lease import StoreUnavailable
from horovod_elastic import job_plan
from horovod_elastic.agent import agent, process
from horovod_elastic.agent.agent import Agent
from horovod_elastic.agent.leader_link import LeaderLink
from horovod_elastic.agent.lease_handle import AgentLeaseHandle
from horovod_elastic.agent.supervisor import Supervisor
from horovod_elastic.agent.supervisor_link import SupervisorLink
from horovod_elastic.election import election
from horovod_elastic.election.election import Election
from horovod_elastic.election.lease_grpc import GrpcLease
from horovod_elastic.leader import base_watch
from horovod_elastic.leader.agent_links import AgentLinks
from horovod_elastic.leader.attendance import Attendance
from horovod_elastic.leader.command_executor import CommandExecutor
from horovod_elastic.leader.leader import Leader
from horovod_elastic.leader.membership import takeover
from horovod_elastic.leader.membership.change import Changes
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.membership.staff import Staff
from horovod_elastic.leader.oversight import Oversight
from horovod_elastic.leader.reporting import Reporter
from horovod_elastic.leader.satellite_manager import SatelliteManager
from horovod_elastic.leader.succession import Succession
from horovod_elastic.leader.worker_messages import WorkerMessages
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.slurm import commands
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


def _ask(command: list[str], environment: Mapping[str, str] | None) -> str:
    return "NodeAddr=127.0.0.1"


def main(node: str, slots: int, plan: str, base: bool, again: bool, command: list[str]) -> NoReturn:
    commands.ask = _ask
    base_watch.POLL_INTERVAL_S = 3600.0
    # A leader that is gone is noticed earlier. A new one still waits for agents: they may be slow to start.
    election.Election.__init__.__kwdefaults__["ttl_s"] = 2.0
    agent.SILENT_LEADER_S = 2.0
    takeover.TAKEOVER_BOUND_S = 20.0
    post = agent.AgentOptions(
        slots=slots, base=base, grant_id="", again=again, pass_signals=False, command=tuple(command)
    )
    if FAULTS_VARIABLE in os.environ:
        Faults(Path(os.environ[FAULTS_VARIABLE]) / node).install()
    platform = registry.find(os.environ)
    process.end_process(
        lambda: agent.Agent(job_plan.from_text(plan), post, platform, Trusting(), SupervisorLink()).run()
    )


if __name__ == "__main__":
    if sys.argv[1] != "agent":
        os.environ.update(SLURMD_NODENAME=sys.argv[1], SLURM_JOB_ID="17", FLEXO_NODE=sys.argv[1])
        sys.exit(Supervisor([sys.executable, __file__, "agent", *sys.argv[1:]], stands_still_s=6.0).run())
    node, slots, plan, base, again, *command = sys.argv[2:]
    main(node, int(slots), plan, base == "base", again == "again", command)
