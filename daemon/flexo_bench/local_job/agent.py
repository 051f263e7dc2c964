"""A supervisor and its agent as processes, in a job without Slurm.

Slurm's answers and MUNGE are stand-ins; streams, election, processes and signals are real. Satellites are let
in, although no flexod has granted them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from flexo_bench.local_job.trusting import Trusting
from horovod_elastic import job_plan
from horovod_elastic.agent import agent, process
from horovod_elastic.agent.supervisor import Supervisor
from horovod_elastic.agent.supervisor_link import SupervisorLink
from horovod_elastic.election import election
from horovod_elastic.leader import base_watch
from horovod_elastic.leader.membership import takeover
from horovod_elastic.leader.satellite_manager import SatelliteManager
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.slurm import commands


def _ask(command: list[str], environment: Mapping[str, str] | None) -> str:
    return "NodeAddr=127.0.0.1"


def run_agent(
    node: str,
    slots: int,
    plan: str,
    *,
    base: bool,
    again: bool,
    command: list[str],
    before: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Be the agent of `node`. `before`: called once time limits are set."""
    commands.ask = _ask
    base_watch.POLL_INTERVAL_S = 3600.0
    # A leader that is gone is noticed earlier. A new one still waits for agents: they may be slow to start.
    defaults = election.Election.__init__.__kwdefaults__
    assert defaults is not None
    defaults["ttl_s"] = 2.0
    agent.SILENT_LEADER_S = 2.0
    takeover.TAKEOVER_BOUND_S = 20.0
    post = agent.AgentOptions(
        slots=slots, base=base, grant_id="", again=again, pass_signals=False, command=tuple(command)
    )
    before()
    platform = registry.find(os.environ)
    process.end_process(
        lambda: agent.Agent(job_plan.from_text(plan), post, platform, Trusting(), SupervisorLink()).run()
    )


def main() -> None:
    """Supervise an agent, or be it."""
    if sys.argv[1] != "agent":
        os.environ.update(SLURMD_NODENAME=sys.argv[1], SLURM_JOB_ID=sys.argv[2], FLEXO_NODE=sys.argv[1])
        own = [sys.executable, "-P", "-m", "flexo_bench.local_job.agent", "agent", *sys.argv[1:]]
        sys.exit(Supervisor(own, stands_still_s=6.0).run())
    SatelliteManager.admit = lambda *_: ""  # type: ignore[method-assign]
    node, _, slots, plan, base, *command = sys.argv[2:]
    run_agent(node, int(slots), plan, base=base == "base", again=False, command=command)


if __name__ == "__main__":
    main()
