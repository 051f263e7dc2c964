"""A supervisor and its agent in a job without Slurm, as in the unit tests; satellites are let in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "horovod_elastic"))

import agent_process

from horovod_elastic.agent.supervisor import Supervisor
from horovod_elastic.leader import leader

if __name__ == "__main__":
    if sys.argv[1] != "agent":
        os.environ.update(SLURMD_NODENAME=sys.argv[1], SLURM_JOB_ID=sys.argv[2], FLEXO_NODE=sys.argv[1])
        sys.exit(Supervisor([sys.executable, __file__, "agent", *sys.argv[1:]], stands_still_s=6.0).run())
    manager = leader.SatelliteManager
    manager.admit = lambda *_: ""  # type: ignore[method-assign]  # there is no flexod that granted them
    node, _, slots, plan, base, *command = sys.argv[2:]
    agent_process.main(node, int(slots), plan, base == "base", False, command)
