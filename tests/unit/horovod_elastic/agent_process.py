"""A keeper and its agent as processes, in a job without Slurm: run by the tests of agents and their leaders.

Slurm's answers and MUNGE are stand-ins; streams, election, processes and signals are real.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from flexo_protos.credentials import Caller, NotAuthentic
from horovod_elastic import job_plan, slurm_job
from horovod_elastic.agent import agent
from horovod_elastic.agent.keeper import Keeper
from horovod_elastic.agent.keeper_link import KeeperLink
from horovod_elastic.election import election
from horovod_elastic.leader import leader, takeover


class Trusting:
    """A stand-in for MUNGE that believes what it is told, but only for the method that it was told for."""

    def credential(self, method: str) -> str:
        return f"{os.getuid()} {method}"

    def verify(self, credential: str, method: str) -> Caller:
        uid, _, said = credential.partition(" ")
        if said != method:
            raise NotAuthentic(f"the credential was not made for {method}")
        return Caller(int(uid), 0)


def _ask(command: list[str], environment: Mapping[str, str] | None) -> str:
    return "NodeAddr=127.0.0.1"


def main(node: str, slots: int, plan: str, base: bool, again: bool, command: list[str]) -> int:
    slurm_job.ask = _ask
    leader.BASE_LOOK_INTERVAL_S = 3600.0
    # A leader that is gone is noticed earlier. A new one still waits for agents: they may be slow to start.
    election.Election.__init__.__kwdefaults__["ttl_s"] = 2.0
    agent.SILENT_LEADER_S = 2.0
    takeover.TAKEOVER_BOUND_S = 20.0
    post = agent.Post(
        slots=slots, base=base, grant_id="", again=again, pass_signals=False, command=tuple(command)
    )
    return agent.Agent(job_plan.from_text(plan), post, Trusting(), KeeperLink()).run()


if __name__ == "__main__":
    if sys.argv[1] != "agent":
        os.environ.update(SLURMD_NODENAME=sys.argv[1], SLURM_JOB_ID="17")
        sys.exit(Keeper([sys.executable, __file__, "agent", *sys.argv[1:]], stands_still_s=6.0).run())
    node, slots, plan, base, again, *command = sys.argv[2:]
    sys.exit(main(node, int(slots), plan, base == "base", again == "again", command))
